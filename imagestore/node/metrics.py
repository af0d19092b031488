"""The kubelet's image metrics, in a registry of prometheus_client.

Names and labels are the kubelet's, except ``kubelet_images_runtime_handler``: KEP-4216 promises that metric for beta
without a name.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError
from imagestore.util.distribution import install_hint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client import CollectorRegistry, Gauge

_MIB: Final = 1024 * 1024
_GIB: Final = 1024 * _MIB
#: Exclusive lower bounds in bytes and their labels, the largest first.
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


class NodeMetrics:
    """All metrics of one node agent; safe from any thread.

    Args:
        registry: receives the metrics; by default a new one.

    Raises:
        ConfigError: prometheus_client is not installed.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ImportError as error:
            raise ConfigError(
                "metrics: expected the package prometheus_client, it is not installed",
                hint=install_hint("metrics"),
            ) from error
        self.registry = registry = registry or CollectorRegistry()
        self.ensure_requests = Counter(
            "kubelet_image_manager_ensure_image_requests",
            "Number of ensure-image requests.",
            ["pull_policy", "present_locally", "pull_required"],
            registry=registry,
        )
        self.pull_duration = Histogram(
            "kubelet_image_pull_duration_seconds",
            "Duration of image pulls.",
            ["image_size_in_bytes"],
            buckets=_DURATIONS,
            registry=registry,
        )
        self.collected = Counter(
            "kubelet_image_garbage_collected", "Number of images removed by collection.", ["reason"], registry=registry
        )
        self.must_pull_checks = Counter(
            "kubelet_imagemanager_image_mustpull_checks",
            "Checks whether an image must be pulled again.",
            ["result"],
            registry=registry,
        )
        self._handler_images = Gauge(
            "kubelet_images_runtime_handler",
            "Images by the runtime handler they were pulled for.",
            ["runtime_handler"],
            registry=registry,
        )

        def _measured(name: str, text: str) -> MeasuredGauge:
            return MeasuredGauge(Gauge(f"kubelet_imagemanager_{name}", text, registry=None), registry)

        self.pull_intents = _measured("ondisk_pullintents", "Number of pull intents on disk.")
        self.pulled_records = _measured("ondisk_pulledrecords", "Number of pulled records on disk.")

    def count_handlers(self, images: Mapping[str, int]) -> None:
        """Set the number of images of each runtime handler; other handlers disappear."""
        self._handler_images.clear()
        for handler, count in images.items():
            self._handler_images.labels(handler).set(count)

    def text(self) -> str:
        """The metrics in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()


class MeasuredGauge:
    """A gauge that is registered by its first value.

    Several commands may each write a metrics file; a collector refuses files that contain the same metric.
    """

    def __init__(self, gauge: Gauge, registry: CollectorRegistry) -> None:
        self._gauge = gauge
        self._registry = registry
        self._lock = threading.Lock()
        self._is_shown = False

    def set(self, number: float) -> None:
        """Set the gauge."""
        self._gauge.set(number)
        with self._lock:
            if not self._is_shown:
                self._registry.register(self._gauge)
                self._is_shown = True
