"""containerd's ``image_pull_progress_timeout``: a pull that receives nothing for this long is cancelled.

Rule: containerd's ``pullProgressReporter``. Time counts only while a blob is being received, not while the pull waits
for a slot, for another pull of the same blob, for a registry's Retry-After, or for the disk. The check runs every 10
seconds, or twice per timeout if that is shorter. Manifests have the limits of the registry client.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from imagestore.events import BlobAdvanced, BlobAwaited, BlobDone, BlobStarted, BlobVerifying, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.events import Event, Observer
    from imagestore.oci.digest import Digest
    from imagestore.util.cancel import CancelToken

_CHECK_SECONDS: Final = 10.0


class ProgressWatch:
    """Watches the events of one pull, which come from several threads, and passes them on to an observer.

    No lock is needed: each operation on the set and on the time is atomic.
    """

    def __init__(self, observer: Observer, limit_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._observer = observer
        self._limit = limit_seconds
        self._clock = clock
        self._receiving: set[Digest] = set()
        self._since = clock()

    def __call__(self, event: Event) -> None:
        """Process an event."""
        match event:
            case BlobStarted(descriptor, _):
                self._since = self._clock()
                self._receiving.add(descriptor.digest)
            case BlobAdvanced(_, _):
                self._since = self._clock()
            case BlobVerifying(descriptor) | BlobAwaited(descriptor) | BlobDone(descriptor, _):
                # Other blobs continue; their time without a byte began no earlier.
                self._since = self._clock()
                self._receiving.discard(descriptor.digest)
            case Waiting(_, seconds, _):
                self._since = self._clock() + seconds
        self._observer(event)

    @property
    def is_stalled(self) -> bool:
        """Whether a blob is being received, but no byte came for longer than the limit."""
        return bool(self._receiving) and self._clock() - self._since > self._limit

    async def guard(self, token: CancelToken) -> None:
        """Cancel the pull when it stalls; runs until it is cancelled itself."""
        while not self.is_stalled:
            await asyncio.sleep(min(_CHECK_SECONDS, self._limit / 2))
        token.cancel(f"nothing was received for {self._limit:g} s (image_pull_progress_timeout)")
