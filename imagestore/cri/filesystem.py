"""What content takes of its file system, as ``ImageFsInfo`` tells it: a sum over all blobs, made now and then.

A sum is as old as containerd's sampler lets its numbers become, and says when it was made. It is made anew once records
change, in whichever process, and after each collection of this one. The kubelet decides nothing by it: its eviction and
image collection go by the free bytes of the disk, for which they only want its mountpoint.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Final

from imagestore.cri._proto import api_pb2
from imagestore.store.maintenance.usage import content_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers

#: A walk through 50,000 blobs takes half a second, and kubelets ask every 10 s.
KEPT_SECONDS: Final = 10.0


class FilesystemUse:
    """Adds up what content takes, once for all who ask within some seconds; for one event loop.

    Args:
        workers: the store and the threads for it.
        clock: in seconds.
    """

    def __init__(self, workers: StoreWorkers, clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._clock = clock
        self._sum: asyncio.Task[api_pb2.FilesystemUsage] | None = None
        self._until = 0.0
        self._belongs_to: tuple[object, int] = (None, 0)

    def forget(self) -> None:
        """A call has brought or removed something, which whoever asks next should see."""
        self._sum = None

    async def usage(self) -> api_pb2.FilesystemUsage:
        """The sum, unfinished downloads included.

        Raises:
            StoreError: a folder can't be read.
        """
        current = self._sum
        now = (self._workers.state(), self._workers.collections)
        if current is None or self._clock() >= self._until or now != self._belongs_to:
            self._belongs_to = now
            current = self._sum = asyncio.create_task(self._workers.quick(_measured))
            self._until = self._clock() + KEPT_SECONDS
        try:
            # Others may wait for it, so who leaves doesn't end it.
            return await asyncio.shield(current)
        except Exception:
            if self._sum is current:
                self._sum = None
            raise


def _measured(store: ImageStore) -> api_pb2.FilesystemUsage:
    measured_at = time.time_ns()
    root, use = store.content.root, content_use(store.content)
    return api_pb2.FilesystemUsage(
        timestamp=measured_at,
        fs_id=api_pb2.FilesystemIdentifier(mountpoint=os.fsencode(root).decode("utf-8", "replace")),
        used_bytes=api_pb2.UInt64Value(value=use.size),
        inodes_used=api_pb2.UInt64Value(value=use.inodes),
    )
