"""When things were served last, told to the catalogue: exactly to a minute, so that most requests write nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageStoreError

if TYPE_CHECKING:
    from imagestore.mirror.catalogue import Catalogue
    from imagestore.oci.digest import Digest
    from imagestore.store.workers import StoreWorkers

log = logging.getLogger(__name__)

_EXACT_SECONDS: Final = 60.0
_MOST_KNOWN: Final = 10_000


class RecentUses:
    """What this process served in the last minute; its methods are the event loop's.

    Args:
        workers: has threads.
        catalogue: is told.
    """

    def __init__(self, workers: StoreWorkers, catalogue: Catalogue) -> None:
        self._workers = workers
        self._catalogue = catalogue
        self._loop = asyncio.get_running_loop()
        self._uses: dict[tuple[str, Digest], float] = {}

    async def note(self, name: str, digest: Digest) -> None:
        """Content of a repository is served now. Where that can't be noted, it is served all the same."""
        now, key = self._loop.time(), (name, digest)
        if now - self._uses.get(key, -_EXACT_SECONDS) < _EXACT_SECONDS:
            return
        if len(self._uses) >= _MOST_KNOWN:
            self._uses.clear()
        self._uses[key] = now
        try:
            await self._workers.quick(lambda _: self._catalogue.note_served(name, digest))
        except ImageStoreError as error:
            log.warning("use isn't noted: %s", error, extra={"digest": str(digest)})
