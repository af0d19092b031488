"""A list of images read straight from the database, without opening the store, which takes longer than a list.

The file is only read, and only if nothing has to be done first: SqliteMetadataStore creates, migrates or refuses a
missing, older, damaged or foreign database.
"""

from __future__ import annotations

import functools
import json
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import StoreError
from imagestore.metadata.sqlite import schema
from imagestore.metadata.sqlite.forks import refuse_in_child
from imagestore.platforms.platform import Platform
from imagestore.util.root_folder import refuse_untrusted

if TYPE_CHECKING:
    from pathlib import Path

_QUERY = "SELECT reference, handler, image_id, platform, content_size FROM image ORDER BY reference, handler"


@dataclass(frozen=True, slots=True)
class ImageSummary:
    """What a list shows of a record; ``image_id`` is in text form, ``size`` the bytes of all content as transferred."""

    reference: str
    handler: str
    image_id: str
    platform: Platform
    size: int


def read_summaries(path: Path) -> list[ImageSummary] | None:
    """Every record's summary, ordered by reference and handler; None when the database must be opened in full first."""
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
            ImageSummary(reference, handler, image_id, _platform(platform), size)
            for reference, handler, image_id, platform, size in db.execute(_QUERY)
        ]
    except (sqlite3.Error, ValueError, TypeError):
        return None
    finally:
        db.close()


# As in ``rows``, which imports more than a list needs.
@functools.lru_cache(maxsize=256)
def _platform(text: str) -> Platform:
    os, architecture, variant, os_version, os_features = json.loads(text)
    return Platform(os, architecture, variant, os_version, tuple(os_features))
