"""The note by which an older database in the store's place is noticed.

``last-change.json`` next to the database has the store's id and the number of a change that is certainly on the disk.
It is written when a store is closed and with each copy, so a process that is killed leaves an older note, which says
less but nothing wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.util import files

if TYPE_CHECKING:
    from pathlib import Path

NOTE: Final = "last-change.json"
_MOST_BYTES: Final = 4096
_STORE_ID: Final = re.compile("[0-9a-f]{32}")
_MOST: Final = 2**62


@dataclass(frozen=True, slots=True)
class LastChange:
    """What the note says: the id of the store, and the number of one of its changes."""

    store: str
    number: int


class LastChangeNote:
    """The note next to a database.

    Args:
        database: its file.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(NOTE)

    def read(self) -> LastChange | None:
        """What it says; None if there is none, or it is cut off.

        Raises:
            OSError: it can't be read.
        """
        try:
            with open(self.path, "rb", opener=files.opener) as file:
                said = json.loads(file.read(_MOST_BYTES))
            store, number = said["store"], said["number"]
            if _STORE_ID.fullmatch(store) and type(number) is int and 0 <= number < _MOST:
                return LastChange(store, number)
        except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return None

    def write(self, change: LastChange) -> None:
        """Replace it, unless it knows of a later change of this store already.

        Raises:
            OSError: it can't be written.
        """
        known = self.read()
        if known is None or known.store != change.store or known.number < change.number:
            files.replace(self.path, json.dumps({"store": change.store, "number": change.number}).encode())

    def remove(self) -> None:
        """Nothing is known from now on.

        Raises:
            OSError: it can't be removed.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
