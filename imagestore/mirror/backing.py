"""What a mirror stands on: what it remembers, and where the bytes of its blobs are; opened for the store it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.content.locks import FileLock
from imagestore.errors import StoreBusyError
from imagestore.mirror.blobs import StoreFiles
from imagestore.mirror.catalogue import Catalogue
from imagestore.mirror.second_tier import SecondTier
from imagestore.mirror.sqlite_rows import open_sqlite_rows

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from imagestore.mirror.blobs import StoreBlobs
    from imagestore.mirror.numbers import MirrorNumbers
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers

#: Where the root has what the catalogue remembers.
CATALOGUE: Final = "mirror.db"
LOCK: Final = "mirror"


@dataclass(frozen=True, slots=True)
class Backing:
    """Close it.

    Attributes:
        catalogue: what is here.
        stored: where blobs of the store are read.
        second: the bucket behind the store; None for none.
        is_alone: no other process has the same catalogue, so nothing is on its way when this one starts.
        close: lets go of all.
    """

    catalogue: Catalogue
    stored: StoreBlobs
    second: SecondTier | None
    is_alone: bool
    close: Callable[[], None]


def open_backing(
    store: ImageStore, workers: StoreWorkers, numbers: MirrorNumbers, _loop: asyncio.AbstractEventLoop
) -> Backing:
    """For a store in a folder: all is there.

    Args:
        store: the one that is served.
        workers: lends it, and those that replace it.
        numbers: hears of bytes.
        _loop: the clients'; a file needs none.

    Raises:
        ConfigError: the bucket can't be used.
        StoreBusyError: another mirror has the store.
        StoreError: the catalogue can't be opened.
    """
    lock = FileLock(str(store.root / "locks" / LOCK))
    if not lock.try_acquire():
        raise StoreBusyError(
            f"{store.root}: another mirror serves this store", hint="give this one a --root of its own"
        )
    try:
        settings = store.config.settings.mirror.bucket
        second = SecondTier(settings, workers, numbers) if settings is not None else None
        try:
            catalogue = Catalogue(open_sqlite_rows(store.root / CATALOGUE))
        except BaseException:
            if second is not None:
                second.close()
            raise
    except BaseException:
        lock.release()
        raise
    stored = StoreFiles(second)

    def close() -> None:
        stored.close()
        if second is not None:
            second.close()
        catalogue.close()
        lock.release()

    return Backing(catalogue, stored, second, is_alone=True, close=close)
