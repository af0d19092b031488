"""containerd's ``image_pull_progress_timeout``: a pull that receives nothing for so long is cancelled.

The rule is that of containerd's ``pullProgressReporter``: the clock runs only while something is being received, not
while the pull waits in line, for another pull of the same blob, for a registry's Retry-After, or for the disk. The look
is every 10 seconds, or after half the timeout where that is shorter. Manifests have the registry client's own limits.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from imagestore.registry.events import BlobAdvanced, BlobAwaited, BlobDone, BlobStarted, BlobVerifying, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.oci.digest import Digest
    from imagestore.registry.events import Event, Observer
    from imagestore.util.cancel import CancelToken

_LOOK_SECONDS: Final = 10.0


class ProgressWatch:
    """Follows the events of one pull, which come from several threads.

    No lock is needed: each step on the set and on the time is one of the interpreter's.

    Args:
        observer: gets every event too.
        limit_seconds: without a byte; more than 0.
        clock: in seconds.
    """

    def __init__(self, observer: Observer, limit_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._observer = observer
        self._limit = limit_seconds
        self._clock = clock
        self._receiving: set[Digest] = set()
        self._since = clock()

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        match event:
            case BlobStarted(descriptor, _):
                self._since = self._clock()
                self._receiving.add(descriptor.digest)
            case BlobAdvanced(_, _):
                self._since = self._clock()
            case BlobVerifying(descriptor) | BlobAwaited(descriptor) | BlobDone(descriptor, _):
                # What else is received goes on; its clock is no older than this.
                self._since = self._clock()
                self._receiving.discard(descriptor.digest)
            case Waiting(_, seconds, _):
                self._since = self._clock() + seconds
        self._observer(event)

    @property
    def is_stalled(self) -> bool:
        """Whether something is being received and nothing came for longer than the limit."""
        return bool(self._receiving) and self._clock() - self._since > self._limit

    async def guard(self, token: CancelToken) -> None:
        """Cancel the pull once it is stalled; runs until cancelled itself."""
        while not self.is_stalled:
            await asyncio.sleep(min(_LOOK_SECONDS, self._limit / 2))
        token.cancel(f"nothing was received for {self._limit:g} s (image_pull_progress_timeout)")
