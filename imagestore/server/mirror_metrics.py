"""A mirror's numbers in Prometheus' form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.mirror.counters import MirrorCounters

_MEANINGS: Final = {
    "fetched_bytes": "Bytes fetched from upstream.",
    "replicated_bytes": "Bytes fetched from the replica that owns them.",
    "bucket_read_bytes": "Bytes fetched from the bucket.",
    "bucket_written_bytes": "Bytes brought to the bucket.",
    "served_bytes": "Bytes of manifests and blobs sent to clients.",
    "evicted_bytes": "Bytes deleted for a quota.",
    "quota_refusals": "Blobs that weren't fetched, since a quota had no room.",
}


class Measured(Protocol):
    """What has a mirror's numbers."""

    @property
    def counters(self) -> MirrorCounters:
        """Its counters."""

    def usage(self) -> dict[str, tuple[int, int | None]]:
        """What each upstream's content takes, and may take, in bytes."""


class MirrorCollector:
    """Reads the counters when asked; a collector in the sense of Prometheus' library.

    Args:
        mirror: has the counters.
    """

    def __init__(self, mirror: Measured) -> None:
        self._mirror = mirror

    def describe(self) -> list[Any]:
        """Nothing, so that no names are asked for before there are numbers."""
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
