"""The journal of records that imagestore wrote up to schema version 6, in place of copies.

It is read once, when the schema is migrated, then moved to the folder of the copies. The database knows more than the
journal unless it was lost or replaced by an older one; then the imagestore that wrote the journal has to rebuild it.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, Final

from imagestore.util.files import opener

if TYPE_CHECKING:
    from pathlib import Path

JOURNAL: Final = "records.jsonl"
HINT: Final = "run 'imagestore check --rebuild' of the version before once, then update again"
_LONGEST_LINE_BYTES: Final = 8 * 1024 * 1024
#: Lines that were only written after the commit.
_AFTER_COMMIT: Final = ("remove", "release", "unleased")


class EarlierJournal:
    """The journal next to a database.

    Args:
        database: its file.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(JOURNAL)

    def has_entries(self) -> bool:
        """Whether it knows anything."""
        try:
            return os.stat(self.path).st_size > 0
        except FileNotFoundError:
            return False

    def read(self) -> tuple[int, str]:
        """The number of the last change that was certainly committed, and the store's id; 0 and empty where unknown.

        Raises:
            OSError: it can't be read.
        """
        number, store_id = 0, ""
        with open(self.path, "rb", opener=opener) as file:
            while line := file.readline(_LONGEST_LINE_BYTES):
                with contextlib.suppress(ValueError, TypeError, AttributeError, OverflowError, RecursionError):
                    entry = json.loads(line)
                    number = max(number, _committed(entry))
                    store_id = str(entry.get("store") or store_id)
        return number, store_id

    def move_aside(self, folder: Path) -> None:
        """Move it to a folder, which is made if it is missing; without a journal do nothing.

        Raises:
            OSError: it can't be moved.
        """
        if os.path.lexists(self.path):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            os.replace(self.path, folder / JOURNAL)


def _committed(entry: dict[str, Any]) -> int:
    if "begin" in entry:
        return int(entry["begin"])
    is_committed = entry.get("committed") is True or any(kind in entry for kind in _AFTER_COMMIT)
    return int(entry["number"]) if is_committed and "number" in entry else 0
