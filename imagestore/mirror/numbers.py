"""What a mirror counts."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class MirrorNumbers:
    """Counters by upstream; thread-safe. The metrics server reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Requests by (upstream, kind, result): what was asked for, and ``hit``, ``fetched``, ``joined``, ``stale``,
        #: ``missing``, ``redirected``, or ``failed``.
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._fetched: Counter[str] = Counter()
        self._replicated: Counter[str] = Counter()
        self._published: Counter[str] = Counter()
        self._from_bucket: Counter[str] = Counter()
        self._served: Counter[str] = Counter()
        self._evicted: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def count_request(self, upstream: str, kind: str, result: str) -> None:
        """A client was answered."""
        with self._lock:
            self._requests[upstream, kind, result] += 1

    def count_fetched(self, upstream: str, byte_count: int, *, is_from_replica: bool) -> None:
        """Bytes came from upstream, or from another replica."""
        with self._lock:
            (self._replicated if is_from_replica else self._fetched)[upstream] += byte_count

    def count_published(self, upstream: str, byte_count: int) -> None:
        """Bytes went into the bucket."""
        with self._lock:
            self._published[upstream] += byte_count

    def count_from_bucket(self, upstream: str, byte_count: int) -> None:
        """Bytes came from the bucket."""
        with self._lock:
            self._from_bucket[upstream] += byte_count

    def count_served(self, upstream: str, byte_count: int) -> None:
        """Bytes of bodies went to clients."""
        with self._lock:
            self._served[upstream] += byte_count

    def count_evicted(self, upstream: str, byte_count: int) -> None:
        """Bytes were deleted for a quota."""
        with self._lock:
            self._evicted[upstream] += byte_count

    def count_refused(self, upstream: str) -> None:
        """A fetch was refused for a quota."""
        with self._lock:
            self._refused[upstream] += 1

    def requests(self) -> dict[tuple[str, str, str], int]:
        """How often clients were answered, by upstream, kind and result."""
        with self._lock:
            return dict(self._requests)

    def by_upstream(self) -> Iterator[tuple[str, dict[str, int]]]:
        """The other counters of each upstream, by the last part of their metric's name."""
        with self._lock:
            tables = {
                "fetched_bytes": Counter(self._fetched),
                "replicated_bytes": Counter(self._replicated),
                "bucket_read_bytes": Counter(self._from_bucket),
                "bucket_written_bytes": Counter(self._published),
                "served_bytes": Counter(self._served),
                "evicted_bytes": Counter(self._evicted),
                "quota_refusals": Counter(self._refused),
            }
        for upstream in sorted({name for table in tables.values() for name in table}):
            yield upstream, {name: table[upstream] for name, table in tables.items()}
