"""The embedded adapters of a store's folder: content in files, records in SQLite, and what ties the two together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from imagestore.content.disk import make_directory, translated
from imagestore.content.local import LocalContentStore
from imagestore.metadata.sqlite.location import refuse_missing
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.util.root_folder import refuse_untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from imagestore.util.disk_reserve import Ballast

log = logging.getLogger(__name__)


def open_metadata(
    root: Path, *, clock: Callable[[], float], is_making: bool = True, is_freeing: bool = True
) -> SqliteMetadataStore:
    """Open a folder's records; before its content, since content without a database looks like a store that lost it.

    Args:
        root: the store's folder.
        clock: seconds since 1970.
        is_making: make them where there are none.
        is_freeing: open a full disk's database with the space kept back for removals.

    Raises:
        StoreError: the folder can't be used.
    """
    database = root / "metadata.db"
    refuse_untrusted(root)
    if is_making:
        with translated("make the store's folder", root):
            make_directory(root, 0o700)
    else:
        refuse_missing(database)
    kept: list[tuple[int, str]] = []

    def _keep_on_making(metadata: SqliteMetadataStore) -> None:
        kept.extend(_keep_found(root, metadata))

    metadata = SqliteMetadataStore(database, clock=clock, is_freeing=is_freeing, on_making=_keep_on_making)
    for count, lease in kept:
        said = "%s: made a database next to %d blobs of unknown use, which lease %s keeps for a day"
        log.warning(said, root, count, lease)
    return metadata


def open_content(root: Path, *, sources: Sequence[Path], ballast: Ballast | None) -> LocalContentStore:
    """Open a folder's blobs.

    Args:
        root: the store's folder.
        sources: folders with ``blobs`` to adopt content from.
        ballast: space kept back on their disk.

    Raises:
        StoreError: the folders can't be made.
    """
    return LocalContentStore(root / "content", root / "locks", sources=sources, ballast=ballast)


def _keep_found(root: Path, metadata: SqliteMetadataStore) -> list[tuple[int, str]]:
    """Lease what was here before the database, in the transaction that makes it: no other work is in between."""
    content = root / "content"
    if not content.is_dir():
        return []
    found = [info.digest for info in LocalContentStore(content, root / "locks").walk()]
    if not found:
        return []
    from imagestore.store import leases

    return [(len(found), leases.keep_found(metadata, found))]
