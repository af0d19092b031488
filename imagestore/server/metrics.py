"""The server's numbers in Prometheus' text format, on a loopback port.

What the store holds is measured when Prometheus asks, and again only when records changed or the last measurement is
old. ``imagestore_images_nondefault_runtime_handler`` is the figure that
KEP-4216 asks for before beta: images that exist because a runtime handler other than the default wanted them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import ConfigError, ImageStoreError, ServerError
from imagestore.util.distribution import install_hint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.cri.pull_queue import PullOutcome
    from imagestore.mirror import Mirror
    from imagestore.server.metrics_http import MetricsServer
    from imagestore.server.publishing import ServedPublisher
    from imagestore.store.garbage import GarbageReport
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers

#: A walk through 50,000 blobs takes half a second.
_SIZES_SECONDS: Final = 30.0
_CALL_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)
_PULL_SECONDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
#: containerd's, for its histogram of the same meaning.
_MEBIBYTES: Final = (0.1, 1.0, 10.0, 25.0, 75.0, 150.0, 300.0, 500.0, 1000.0, 2000.0, 4000.0)
_MIB: Final = 1024 * 1024
#: A mirror's counters.
_MEANINGS: Final = {
    "fetched_bytes": "Bytes fetched from upstream.",
    "replicated_bytes": "Bytes fetched from the replica that owns them.",
    "bucket_read_bytes": "Bytes fetched from the bucket.",
    "bucket_written_bytes": "Bytes brought to the bucket.",
    "served_bytes": "Bytes of manifests and blobs sent to clients.",
    "evicted_bytes": "Bytes deleted for a quota.",
    "quota_refusals": "Blobs that weren't fetched, since a quota had no room.",
}


class Metrics:
    """Counts calls and pulls, and publishes the numbers.

    Raises:
        ConfigError: Prometheus' library isn't installed.
    """

    def __init__(self, workers: StoreWorkers) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ImportError as error:
            raise ConfigError(
                "metrics: expected the package prometheus_client, it is not installed",
                hint=install_hint("metrics"),
            ) from error
        registry = self._registry = CollectorRegistry()
        self._calls = Counter(
            "imagestore_rpc_handled", "Calls that ended.", ["grpc_method", "grpc_code"], registry=registry
        )
        self._call_seconds = Histogram(
            "imagestore_rpc_seconds", "Duration of calls.", ["grpc_method"], buckets=_CALL_SECONDS, registry=registry
        )
        self._in_progress = Gauge("imagestore_rpc_in_progress", "Calls that have not ended.", registry=registry)
        self._pulls = Counter("imagestore_pulls", "Pulls that ended.", ["status", "runtime_handler"], registry=registry)
        self._pulls_joined = Counter(
            "imagestore_pulls_joined",
            "Calls that shared a pull already going on.",
            ["runtime_handler"],
            registry=registry,
        )
        self._pull_seconds = Histogram(
            "imagestore_pull_seconds", "Duration of pulls.", buckets=_PULL_SECONDS, registry=registry
        )
        self._pull_speed = Histogram(
            "imagestore_pull_throughput_mibps",
            "Mebibytes a second of each pull that fetched anything.",
            buckets=_MEBIBYTES,
            registry=registry,
        )
        self._pulled_bytes = Counter("imagestore_pulled_bytes", "Bytes fetched from registries.", registry=registry)
        self._pulls_active = Gauge("imagestore_pulls_in_progress", "Pulls at work.", registry=registry)
        self._pulls_waiting = Gauge("imagestore_pulls_waiting", "Pulls waiting for their turn.", registry=registry)
        self._listed = Gauge(
            "imagestore_cri_list_bytes", "Size of the last list of all images, of 16 MiB at most.", registry=registry
        )
        self._collections = Counter("imagestore_gc_collections", "Collections.", ["status"], registry=registry)
        self._gc_seconds = Histogram("imagestore_gc_seconds", "Duration of collections.", registry=registry)
        self._gc_bytes = Counter("imagestore_gc_freed_bytes", "Bytes freed.", registry=registry)
        self._reloads = Counter(
            "imagestore_config_reloads", "Reloads of the configuration.", ["status"], registry=registry
        )
        self._children: dict[tuple[str, str], tuple[Any, Any]] = {}
        registry.register(StoreNumbers(workers))

    def began(self, method: str) -> None:
        """A call starts."""
        self._in_progress.inc()

    def ended(self, method: str, code: str, seconds: float) -> None:
        """A call is over."""
        found = self._children.get((method, code))
        if found is None:
            found = (self._calls.labels(method, code), self._call_seconds.labels(method))
            self._children[(method, code)] = found
        found[0].inc()
        found[1].observe(seconds)
        self._in_progress.dec()

    def pulls_waiting(self, count: int) -> None:
        """So many pulls wait now."""
        self._pulls_waiting.set(count)

    def images_listed(self, size: int) -> None:
        """A list of all images takes so many bytes."""
        self._listed.set(size)

    def pull_joined(self, handler: str) -> None:
        """A caller shares a running pull."""
        self._pulls_joined.labels(handler).inc()

    def pull_began(self, handler: str) -> None:
        """A pull starts."""
        self._pulls_active.inc()

    def pull_ended(self, handler: str, *, outcome: PullOutcome, bytes_fetched: int, seconds: float) -> None:
        """A pull that began has ended."""
        self._pulls_active.dec()
        self._pulls.labels(outcome.value, handler).inc()
        self._pull_seconds.observe(seconds)
        self._pulled_bytes.inc(bytes_fetched)
        if bytes_fetched and seconds > 0:
            self._pull_speed.observe(bytes_fetched / seconds / _MIB)

    def collected(self, seconds: float, report: GarbageReport | None) -> None:
        """A collection ended; no report means that it failed, and one with failures that it left garbage behind."""
        self._collections.labels("failure" if report is None or report.failures else "success").inc()
        self._gc_seconds.observe(seconds)
        if report is not None:
            self._gc_bytes.inc(report.bytes_freed)

    def reloaded(self, status: str) -> None:
        """A reload of the configuration ended as ``success`` or ``failure``."""
        self._reloads.labels(status).inc()

    def publish_mirror(self, mirror: Mirror) -> None:
        """Publish a mirror's numbers too."""
        self._registry.register(MirrorCollector(mirror))

    def publish_publisher(self, publisher: ServedPublisher) -> None:
        """Publish a publisher's numbers too."""
        self._registry.register(PublisherCollector(publisher))

    def publish(self, host: str, port: int) -> MetricsServer:
        """Answer HTTP on an address.

        Raises:
            ServerError: it is taken.
        """
        from imagestore.server.metrics_http import MetricsServer

        try:
            return MetricsServer(self._registry, host, port)
        except OSError as error:
            raise ServerError(f"metrics address {host}:{port}: {error.strerror}") from error


class StoreNumbers:
    """What the store holds; a collector in the sense of Prometheus' library."""

    def __init__(self, workers: StoreWorkers) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._state: tuple[int, int] | None = None
        self._images: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._default = ""
        self._sizes = (0, 0)
        self._sizes_at = -_SIZES_SECONDS

    def describe(self) -> list[Any]:
        """Nothing: measuring only to learn the names would open the store before it serves."""
        return []

    def collect(self) -> Iterator[Any]:
        """The numbers now."""
        from prometheus_client.core import GaugeMetricFamily

        with self._lock:
            try:
                with self._workers.lend() as store:
                    self._measure(store)
                    disk = store.content.disk()
            except ImageStoreError:
                return  # absent numbers say more than old ones
            images = GaugeMetricFamily("imagestore_images", "Images, by runtime handler.", labels=["runtime_handler"])
            sizes = GaugeMetricFamily(
                "imagestore_image_bytes",
                "Content of images, shared bytes counted each time.",
                labels=["runtime_handler"],
            )
            for handler, count in sorted(self._images.items()):
                images.add_metric([handler], count)
                sizes.add_metric([handler], self._bytes[handler])
            others = sum(count for handler, count in self._images.items() if handler != self._default)
            yield images
            yield sizes
            yield GaugeMetricFamily(
                "imagestore_images_nondefault_runtime_handler",
                "Images of runtime handlers other than the default one.",
                value=others,
            )
            yield GaugeMetricFamily("imagestore_store_blobs", "Blobs in the store.", value=self._sizes[0])
            yield GaugeMetricFamily("imagestore_store_bytes", "Bytes of blobs in the store.", value=self._sizes[1])
            if not disk.total_bytes:
                return  # they aren't counted there, and 0 would raise alarms
            yield GaugeMetricFamily(
                "imagestore_disk_free_bytes", "Bytes free where the store is.", value=disk.free_bytes
            )
            yield GaugeMetricFamily(
                "imagestore_disk_bytes", "Bytes of the disk the store is on.", value=disk.total_bytes
            )

    def _measure(self, store: ImageStore) -> None:
        self._default = store.config.default_handler
        state = self._workers.state()
        if state is None or state != self._state:
            images: Counter[str] = Counter()
            held: Counter[str] = Counter()
            for record in store.metadata.images.find():
                images[record.handler] += 1
                held[record.handler] += record.content_size
            self._images, self._bytes, self._state = images, held, state
        if time.monotonic() - self._sizes_at >= _SIZES_SECONDS:
            sizes = [info.size for info in store.content.walk()]
            self._sizes, self._sizes_at = (len(sizes), sum(sizes)), time.monotonic()


class PublisherCollector:
    """What a publisher does; a collector in the sense of Prometheus' library."""

    def __init__(self, publisher: ServedPublisher) -> None:
        self._publisher = publisher

    def describe(self) -> list[Any]:
        """Nothing: see StoreNumbers."""
        return []

    def collect(self) -> Iterator[Any]:
        """The numbers now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        follower, publisher = self._publisher.follower, self._publisher.publisher
        yield GaugeMetricFamily(
            "imagestore_publish_containerd_up", "Whether containerd can be reached.", value=follower.is_connected
        )
        images = GaugeMetricFamily("imagestore_publish_images", "Images, by state.", labels=["state"])
        for state, count in publisher.states.counts().items():
            images.add_metric([state.value], count)
        yield images
        published, sizes, seconds = publisher.totals.now()
        yield CounterMetricFamily("imagestore_publish_published", "Images that were published.", value=published)
        content = CounterMetricFamily(
            "imagestore_publish_bytes",
            "Bytes of layers that came into containerd: linked, own file, sent, or present before.",
            labels=["way"],
        )
        for way, size in sizes.items():
            content.add_metric([way.value], size)
        yield content
        steps = CounterMetricFamily(
            "imagestore_publish_seconds",
            "Time of publishes: content (bring and unpack), records, collection.",
            labels=["step"],
        )
        for step, spent in seconds.items():
            steps.add_metric([step], spent)
        yield steps
        yield CounterMetricFamily(
            "imagestore_publish_reconciles",
            "Comparisons of the store with containerd.",
            value=follower.reconciles,
        )


class MirrorCollector:
    """A mirror's counters and content; a collector in the sense of Prometheus' library."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def describe(self) -> list[Any]:
        """Nothing: see StoreNumbers."""
        return []

    def collect(self) -> Iterator[Any]:
        """The numbers now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        requests = CounterMetricFamily(
            "imagestore_mirror_requests",
            "Manifests and blobs that clients asked for, by result: hit, fetched, joined, redirected, stale, missing,"
            " failed.",
            labels=["upstream", "kind", "result"],
        )
        for (upstream, kind, result), count in sorted(self._mirror.counters.requests().items()):
            requests.add_metric([upstream, kind, result], count)
        yield requests
        tables = list(self._mirror.counters.by_upstream())
        for name, meaning in _MEANINGS.items():
            family = CounterMetricFamily(f"imagestore_mirror_{name}", meaning, labels=["upstream"])
            for upstream, table in tables:
                family.add_metric([upstream], table[name])
            yield family
        saved = GaugeMetricFamily(
            "imagestore_mirror_saved_bytes",
            "Bytes sent to clients less those fetched from upstream; to be added up over replicas.",
            labels=["upstream"],
        )
        for upstream, table in tables:
            saved.add_metric([upstream], table["served_bytes"] - table["fetched_bytes"])
        yield saved
        used = GaugeMetricFamily("imagestore_mirror_used_bytes", "What content takes here.", labels=["upstream"])
        quota = GaugeMetricFamily("imagestore_mirror_quota_bytes", "What it may take.", labels=["upstream"])
        for upstream, (taken, most) in sorted(self._mirror.usage().items()):
            used.add_metric([upstream], taken)
            if most is not None:
                quota.add_metric([upstream], most)
        yield used
        yield quota
