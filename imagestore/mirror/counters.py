"""What a mirror counts."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A counter, by the last part of its metric's name.
Name: TypeAlias = Literal[
    "fetched_bytes",
    "replicated_bytes",
    "bucket_read_bytes",
    "bucket_written_bytes",
    "served_bytes",
    "evicted_bytes",
    "quota_refusals",
]
_NAMES: Final[tuple[Name, ...]] = get_args(Name)


class MirrorCounters:
    """Counters by upstream; thread-safe. The metrics server reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._others: Counter[tuple[str, str]] = Counter()

    def count_request(self, upstream: str, kind: str, result: str) -> None:
        """Count an answer to a client.

        Args:
            upstream: whose content was asked for.
            kind: ``manifest`` or ``blob``.
            result: ``hit``, ``fetched``, ``joined``, ``stale``, ``missing``, ``redirected`` or ``failed``.
        """
        with self._lock:
            self._requests[upstream, kind, result] += 1

    def count(self, name: Name, upstream: str, amount: int = 1) -> None:
        """Add to another counter."""
        with self._lock:
            self._others[name, upstream] += amount

    def requests(self) -> dict[tuple[str, str, str], int]:
        """How often clients were answered, by upstream, kind and result."""
        with self._lock:
            return dict(self._requests)

    def by_upstream(self) -> Iterator[tuple[str, dict[str, int]]]:
        """The other counters of each upstream."""
        with self._lock:
            found = Counter(self._others)
        for upstream in sorted({upstream for _, upstream in found}):
            yield upstream, {name: found[name, upstream] for name in _NAMES}
