"""The kubelet's image metrics, counted in the process and written as Prometheus text.

Names and labels are the kubelet's; ``kubelet_images_runtime_handler`` is the one that KEP-4216 promises for beta and
leaves without a name. `NodeMetrics.register` hands the same numbers to prometheus_client where it is installed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MIB: Final = 1024 * 1024
_GIB: Final = 1024 * _MIB
#: Lower bounds in bytes, strictly above which a name counts; the largest first.
_SIZE_BUCKETS: Final = (
    (100 * _GIB, "GT100GB"),
    (60 * _GIB, "60GB-100GB"),
    (40 * _GIB, "40GB-60GB"),
    (30 * _GIB, "30GB-40GB"),
    (20 * _GIB, "20GB-30GB"),
    (10 * _GIB, "10GB-20GB"),
    (5 * _GIB, "5GB-10GB"),
    (1 * _GIB, "1GB-5GB"),
    (500 * _MIB, "500MB-1GB"),
    (100 * _MIB, "100MB-500MB"),
    (10 * _MIB, "10MB-100MB"),
    (0, "0-10MB"),
)
_DURATIONS: Final = (1, 5, 10, 20, 30, 60, 180, 300, 600, 900, 1200, 1800, 2700, 3600)


def size_bucket(size_bytes: int) -> str:
    """The label of an image's size.

    >>> size_bucket(0), size_bucket(10 * 1024 * 1024), size_bucket(10 * 1024 * 1024 + 1)
    ('N/A', '0-10MB', '10MB-100MB')
    """
    return next((name for bound, name in _SIZE_BUCKETS if size_bytes > bound), "N/A")


@dataclass(slots=True)
class Metric:
    """A counter or a gauge: numbers by the values of its labels.

    Attributes:
        name, help, kind: as Prometheus shows them.
        labels: their names.
    """

    name: str
    help: str
    kind: str
    labels: tuple[str, ...] = ()
    _values: dict[tuple[str, ...], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *values: str) -> None:
        """Count one more."""
        with self._lock:
            self._values[values] = self._values.get(values, 0) + 1

    def set(self, number: float, *values: str) -> None:
        """Put a gauge to a number."""
        with self._lock:
            self._values[values] = number

    def replace(self, numbers: Mapping[tuple[str, ...], float]) -> None:
        """Put all of a gauge's numbers at once; what isn't named goes away."""
        with self._lock:
            self._values = dict(numbers)

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Name, labels and number of each line, ordered by labels."""
        with self._lock:
            values = sorted(self._values.items())
        for key, number in values:
            yield self.name, dict(zip(self.labels, key, strict=True)), number


@dataclass(slots=True)
class Histogram:
    """Durations in seconds by the values of its labels, in the kubelet's buckets."""

    name: str
    help: str
    labels: tuple[str, ...]
    buckets: Sequence[float] = _DURATIONS
    kind: str = "histogram"
    _values: dict[tuple[str, ...], list[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, seconds: float, *values: str) -> None:
        """Count one duration."""
        with self._lock:
            row = self._values.setdefault(values, [0.0] * (len(self.buckets) + 2))
            for position, bound in enumerate(self.buckets):
                row[position] += seconds <= bound
            row[-2] += 1
            row[-1] += seconds

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Name, labels and number of each line."""
        with self._lock:
            rows = sorted((key, list(row)) for key, row in self._values.items())
        for key, row in rows:
            labels = dict(zip(self.labels, key, strict=True))
            for bound, number in zip([*(f"{bound:g}" for bound in self.buckets), "+Inf"], row[:-1], strict=True):
                yield f"{self.name}_bucket", {**labels, "le": bound}, number
            yield f"{self.name}_sum", labels, row[-1]
            yield f"{self.name}_count", labels, row[-2]


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, text, "counter", labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, text, "gauge", labels)


class NodeMetrics:
    """All metrics of one node agent; safe from any thread."""

    def __init__(self) -> None:
        self.ensure_requests = _counter(
            "kubelet_image_manager_ensure_image_requests_total",
            "Number of ensure-image requests.",
            "pull_policy",
            "present_locally",
            "pull_required",
        )
        self.pull_duration = Histogram(
            "kubelet_image_pull_duration_seconds", "Duration of image pulls.", ("image_size_in_bytes",)
        )
        self.collected = _counter(
            "kubelet_image_garbage_collected_total", "Number of images removed by collection.", "reason"
        )
        self.pull_intents = _gauge("kubelet_imagemanager_ondisk_pullintents", "Number of pull intents on disk.")
        self.pulled_records = _gauge("kubelet_imagemanager_ondisk_pulledrecords", "Number of pulled records on disk.")
        self.records_cache = _gauge(
            "kubelet_imagemanager_inmemory_pulledrecords_usage_percent", "Use of the cache of pulled records."
        )
        self.intents_cache = _gauge(
            "kubelet_imagemanager_inmemory_pullintents_usage_percent", "Use of the cache of pull intents."
        )
        self.must_pull_checks = _counter(
            "kubelet_imagemanager_image_mustpull_checks_total",
            "Checks whether an image must be pulled again.",
            "result",
        )
        self.handler_images = _gauge(
            "kubelet_images_runtime_handler", "Images by the runtime handler they were pulled for.", "runtime_handler"
        )

    @property
    def all(self) -> tuple[Metric | Histogram, ...]:
        """Every metric, in the order in which text() shows them."""
        return tuple(value for value in vars(self).values() if isinstance(value, Metric | Histogram))

    def text(self) -> str:
        """In Prometheus' text format 0.0.4."""
        lines: list[str] = []
        for metric in self.all:
            samples = list(metric.samples())
            if not samples:
                continue
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            for name, labels, number in samples:
                shown = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
                # In full: a sum of durations that is cut to some digits stands still after a while.
                value = repr(float(number)).removesuffix(".0")
                lines.append(f"{name}{{{shown}}} {value}" if shown else f"{name} {value}")
        return "".join(f"{line}\n" for line in lines)

    def register(self, registry: Any = None) -> None:
        """Let prometheus_client's registry show these metrics too.

        Args:
            registry: its CollectorRegistry; the process's own by default.

        Raises:
            ConfigError: prometheus_client is not installed.
        """
        try:
            from prometheus_client.core import REGISTRY
            from prometheus_client.core import Metric as Family
        except ImportError as error:
            raise ConfigError("prometheus_client is not installed", hint="pip install 'imagestore[metrics]'") from error
        node = self

        class Collector:
            """What prometheus_client asks for families."""

            def collect(self) -> Iterator[Family]:
                """Families of this moment."""
                for metric in node.all:
                    family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
                    for name, labels, number in metric.samples():
                        family.add_sample(name, dict(labels), number)
                    yield family

        (registry or REGISTRY).register(Collector())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
