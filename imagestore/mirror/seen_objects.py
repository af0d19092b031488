"""Which objects a bucket had a moment ago, so that not every redirect of a client sends the bucket a request.

A bucket's lifecycle rules delete objects, and tell nobody. So nothing is remembered for long.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.oci import Descriptor, Digest

#: An object that was seen is taken to be in the bucket for so long.
SEEN_SECONDS: Final = 60.0
_MOST_SEEN: Final = 10_000


class SeenObjects:
    """Remembers blobs whose objects were seen, for ``SEEN_SECONDS``; thread-safe.

    Args:
        clock: in seconds, from any start.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[Digest, int], float] = {}

    def has(self, blob: Descriptor) -> bool:
        """Whether the blob's object was seen a moment ago."""
        with self._lock:
            return self._clock() < self._seen.get((blob.digest, blob.size), 0.0)

    def note(self, blob: Descriptor) -> None:
        """Note that the bucket was asked and has the blob's object."""
        with self._lock:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[blob.digest, blob.size] = self._clock() + SEEN_SECONDS

    def forget(self, blob: Descriptor) -> None:
        """Note that the bucket doesn't have the blob's object."""
        with self._lock:
            self._seen.pop((blob.digest, blob.size), None)
