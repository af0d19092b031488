"""What a mirror keeps its state in, for a store in a folder: catalogue, blobs, and the bucket behind them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreBusyError
from imagestore.mirror.blobs import StoreFiles
from imagestore.mirror.bucket import MirrorBucket
from imagestore.mirror.catalogue import Catalogue
from imagestore.mirror.catalogue_database import SqliteCatalogueDatabase
from imagestore.mirror.settings import MIRROR_PLUGIN
from imagestore.util.file_locks import FileLock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from imagestore.mirror.blobs import StoreBlobs
    from imagestore.mirror.counters import MirrorCounters
    from imagestore.store import ImageStore, StoreWorkers

#: The catalogue's file in the root.
CATALOGUE: Final = "mirror.db"
_LOCK: Final = "mirror"


@dataclass(frozen=True, slots=True)
class Backing:
    """The state of a mirror; close it.

    Attributes:
        catalogue: knows what is here.
        stored: gives the bytes of the store's blobs.
        bucket: behind the store's disk; None for none.
        is_alone: no other process has the same catalogue, so nothing is being fetched when this one starts.
        close: closes all of it.
    """

    catalogue: Catalogue
    stored: StoreBlobs
    bucket: MirrorBucket | None
    is_alone: bool
    close: Callable[[], None]


def open_backing(
    store: ImageStore, workers: StoreWorkers, counters: MirrorCounters, _loop: asyncio.AbstractEventLoop
) -> Backing:
    """Open the state of a mirror of a store in a folder.

    Args:
        store: the one that is served.
        workers: lends it, and those that replace it.
        counters: of bytes.
        _loop: unused; ``open_shared_backing`` needs it.

    Raises:
        ConfigError: the bucket can't be used.
        StoreBusyError: another mirror serves the store.
        StoreError: the catalogue can't be opened.
    """
    lock = FileLock(str(store.root / "locks" / _LOCK))
    if not lock.try_acquire():
        raise StoreBusyError(
            f"{store.root}: another mirror serves this store", hint="give this one a --root of its own"
        )
    with contextlib.ExitStack() as opened:
        opened.callback(lock.release)
        catalogue = Catalogue(SqliteCatalogueDatabase(store.root / CATALOGUE))
        opened.callback(catalogue.close)
        settings = store.config.plugin(MIRROR_PLUGIN).bucket
        bucket = None
        if settings is not None:
            bucket = MirrorBucket(settings, workers, counters)
            opened.callback(bucket.close)
        return Backing(catalogue, StoreFiles(bucket), bucket, is_alone=True, close=opened.pop_all().close)
