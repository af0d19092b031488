"""What the journal is told of changes: what is put before the commit, what is removed after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.metadata.sqlite import journal_lines as lines
from imagestore.metadata.tables import ChangeNotes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from imagestore.metadata.records import ImageRecord, Lease
    from imagestore.metadata.sqlite.database import Database
    from imagestore.oci.digest import Digest


class JournalNotes(ChangeNotes):
    """Writes a line of the journal for every change."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changes = database.changes

    def put(self, records: Collection[ImageRecord]) -> None:
        """Records were put."""
        with self._database.writing() as db:
            self._changes.put(db, lambda number: [lines.put(number, record) for record in records])

    def removed(self, keys: Collection[tuple[str, str]]) -> None:
        """Records were removed."""
        with self._database.writing() as db:
            self._changes.remove(db, lambda number: [lines.remove(number, key) for key in keys])

    def labelled(self, digest: Digest, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """The labels of content were replaced: what is added is written at once, what is removed after the commit."""
        with self._database.writing() as db:
            number = self._changes.number(db)
            if not after.items() <= before.items():
                self._database.journal.append([lines.labels(number, digest, {**before, **after})])
            if not before.items() <= after.items():
                self._changes.after_commit([lines.labels(number, digest, after, is_committed=True)])

    def leased(self, lease: Lease, content: Collection[Digest], *, is_whole: bool = False) -> None:
        """A lease lists this content too, or this alone."""
        with self._database.writing() as db:
            if is_whole:
                self._changes.put(db, lambda number: lines.whole_lease(number, lease, content))
            else:
                self._changes.put(
                    db, lambda number: [lines.leased(number, lease, part) for part in lines.parts(content)]
                )

    def unleased(self, lease: Lease, content: Collection[Digest]) -> None:
        """A lease no longer lists this content."""
        with self._database.writing() as db:
            self._changes.remove(
                db, lambda number: [lines.unleased(number, lease.id, part) for part in lines.parts(content)]
            )

    def released(self, lease: Lease) -> None:
        """A lease was deleted, or no longer has a long lifetime."""
        with self._database.writing() as db:
            self._changes.remove(db, lambda number: [lines.release(number, lease.id)])
