"""The list of images as people see it, read straight from the database by a process that does nothing else.

A full record costs several times what a line of a list shows, and opening the store for everything takes longer than
reading a thousand lines. So this opens the file only to read, and only when nothing has to be done first: a missing,
older, damaged or foreign database is left to SqliteMetadataStore, which makes, migrates or refuses it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import StoreError
from imagestore.metadata.rows import parsed_platform
from imagestore.metadata.sqlite import schema
from imagestore.metadata.sqlite.opening import refuse_in_child
from imagestore.util.root_folder import refuse_untrusted

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.platforms.platform import Platform

_QUERY = "SELECT reference, handler, image_id, platform, content_size FROM image ORDER BY reference, handler"


@dataclass(frozen=True, slots=True)
class ImageSummary:
    """What a list shows of a record.

    Attributes:
        reference: canonical text.
        handler: name of the runtime handler.
        image_id: digest of the config in text form.
        platform: what the image is for.
        size: bytes of all its content as it travels.
    """

    reference: str
    handler: str
    image_id: str
    platform: Platform
    size: int


def read_summaries(path: Path) -> list[ImageSummary] | None:
    """Every record's summary, ordered by reference and handler.

    Args:
        path: the database.

    Returns:
        None when the database must be opened in full first.
    """
    try:
        refuse_untrusted(path.parent)
        refuse_in_child(path)
        db = sqlite3.connect(schema.address(path, "mode=rw"), isolation_level=None, uri=True)
    except (sqlite3.Error, StoreError):
        return None
    try:
        (mark,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if (mark, version) != (schema.APPLICATION_ID, schema.CURRENT):
            return None
        return [
            ImageSummary(reference, handler, image_id, parsed_platform(platform), size)
            for reference, handler, image_id, platform, size in db.execute(_QUERY)
        ]
    except (sqlite3.Error, ValueError, TypeError):
        return None
    finally:
        db.close()
