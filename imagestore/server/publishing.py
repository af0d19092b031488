"""A publisher inside the server process: start, reload, what CRI asks of it, and what it reports."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from imagestore.cri.model import FilesystemUsage
from imagestore.publish import PUBLISH_PLUGIN, Publisher, PublishSettings
from imagestore.publish.file_systems import ImageFileSystems
from imagestore.publish.following import PublishFollower

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from imagestore.events import Observer
    from imagestore.oci.digest import Digest
    from imagestore.store.workers import StoreWorkers
    from imagestore.util.cancel import CancelToken


class ServedPublisher:
    """A publisher that follows the server's store; satisfies CRI's port Readiness.

    Args:
        workers: the store of the moment.
        settings: which containerd, and how.
        take_over: records of another machine's store with this id count as this store's.
        heard: called on the event loop when its state may have changed.
    """

    def __init__(
        self,
        workers: StoreWorkers,
        settings: PublishSettings,
        *,
        take_over: bool = False,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        with workers.lend() as store:
            self._table = store.config.plugin(PUBLISH_PLUGIN)
            self.publisher = Publisher(
                store,
                settings.address,
                namespace=settings.namespace,
                content=settings.content,
                take_over=take_over,
                lend=workers.lend,
            )
        loop = asyncio.get_running_loop()
        self.follower = PublishFollower(
            self.publisher,
            workers.lend,
            repair_seconds=settings.repair_seconds,
            heard=lambda: _call(loop, heard),
        )
        self._workers = workers
        self._file_systems = ImageFileSystems(self.publisher.client, self._root)

    def start(self) -> None:
        """Follow; returns at once, whether containerd runs or not."""
        self.follower.start()

    def reload(self) -> None:
        """The store has a new configuration: handlers, snapshotters and pinned images may be others.

        How images are published stays as it was at the start.
        """
        with self._workers.lend() as store:
            if store.config.plugin(PUBLISH_PLUGIN) != self._table:
                log.warning("a changed table io.imagestore.publish.v1 counts when the server is started again")
        self.follower.reload()

    @property
    def status(self) -> str:
        """One line for people."""
        if not self.follower.is_connected:
            return f"containerd is away: {self.follower.reason}"
        counts = self.publisher.states.counts()
        return "containerd: " + ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)

    def _root(self) -> Path:
        with self._workers.lend() as store:
            return Path(store.config.containerd_root)

    def cancel(self) -> None:
        """End calls to containerd and what waits for them; close() follows."""
        self.publisher.cancel("the server is being stopped")

    def close(self) -> None:
        """End the work; what was begun is continued by the next start."""
        self.follower.close()

    # CRI's port.

    def ensure(self, image_id: Digest) -> Future[None]:
        """See Readiness."""
        return self.publisher.ensure(image_id)

    def removed(self) -> Future[None]:
        """See Readiness."""
        return self.publisher.removed()

    def pulling(
        self, runtime_handler: str, observer: Observer, cancel: CancelToken
    ) -> AbstractContextManager[Observer]:
        """See Readiness."""
        return self.publisher.pulling(runtime_handler, observer, cancel)

    def file_systems(self) -> Sequence[FilesystemUsage]:
        """See Readiness."""
        return [
            FilesystemUsage(each.mountpoint, each.timestamp, each.used_bytes, each.inodes_used)
            for each in self._file_systems.now()
        ]


def _call(loop: asyncio.AbstractEventLoop, heard: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(heard)
