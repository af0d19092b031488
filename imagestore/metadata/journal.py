"""The journal of records: a second memory beside the database, to rebuild the records from when that is damaged.

``records.jsonl`` holds one JSON value a line: a record that was put, or the key of one that was removed; the last word
about a key counts. Entries are appended inside the transaction they belong to, so their order is the commits'. An entry
may be ahead of a commit that never came, and is not synced: a rebuild checks each record against the content anyway.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, Final

from imagestore.failpoint import reach
from imagestore.metadata import rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from imagestore.metadata.api import ImageRecord

# A record takes some 1.5 kB; a journal several times as long as its records need is written anew.
_RECORD_BYTES: Final = 4096
_SMALLEST_BYTES: Final = 1024 * 1024
_LONGEST_LINE_BYTES: Final = 8 * 1024 * 1024


class RecordJournal:
    """The journal in one file; made when the first record comes.

    Callers hold the database's write lock, and so are alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, *, put: Iterable[ImageRecord] = (), removed: Iterable[tuple[str, str]] = ()) -> None:
        """Add entries.

        Raises:
            OSError: the file can't be written.
        """
        entries = [_put(record) for record in put] + [json.dumps({"remove": list(key)}) for key in removed]
        if not entries:
            return
        # A line break first: what a full disk cut off must not spoil the next entry.
        data = "".join(f"\n{entry}" for entry in entries).encode()
        reach("journal-open")
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            reach("journal-append")
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def is_due(self, records: int) -> bool:
        """Whether the journal is much longer than so many records need."""
        try:
            size = os.stat(self.path).st_size
        except FileNotFoundError:
            return records > 0
        return size > _SMALLEST_BYTES + records * _RECORD_BYTES

    def rewrite(self, records: Iterable[ImageRecord]) -> None:
        """Replace the journal by one entry for each record.

        Raises:
            OSError: the file can't be written; the old one stays.
        """
        temporary = self.path.with_name(self.path.name + ".tmp")
        with open(temporary, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)
            for record in records:
                file.write(f"\n{_put(record)}")
            file.flush()
            reach("journal-sync")
            os.fsync(file.fileno())
        reach("journal-rename")
        os.replace(temporary, self.path)

    def read(self) -> tuple[list[ImageRecord], int]:
        """The records by their last words, and how many lines could not be read."""
        last: dict[tuple[str, str], ImageRecord] = {}
        unreadable = 0
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            while line := file.readline(_LONGEST_LINE_BYTES):
                if not line.strip():
                    continue
                try:
                    _apply(json.loads(line), last)
                except (ValueError, TypeError, KeyError, RecursionError):
                    unreadable += 1
        return [last[key] for key in sorted(last)], unreadable


def _put(record: ImageRecord) -> str:
    values = rows.from_record(record, created_at=record.created_at, updated_at=record.updated_at)
    return json.dumps({"put": [*values, json.dumps([str(digest) for digest in record.roots])]})


def _apply(entry: Any, last: dict[tuple[str, str], ImageRecord]) -> None:
    if "put" in entry:
        record = rows.to_record(entry["put"])
        last[record.reference, record.handler] = record
    else:
        reference, handler = entry["remove"]
        last.pop((reference, handler), None)
