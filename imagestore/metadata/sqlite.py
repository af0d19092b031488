"""The metadata port in an embedded SQLite database; ``database`` has the rules of its transactions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from imagestore.metadata import location
from imagestore.metadata.database import COPIED
from imagestore.metadata.graph import GraphTables
from imagestore.metadata.images import ImageTables
from imagestore.metadata.leases import LeaseTables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imagestore.metadata.journal import Journaled


class SqliteMetadataStore(ImageTables, LeaseTables, GraphTables):
    """Records, edges, labels and leases in one file; arguments and errors are those of Database."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        file_system: Callable[[Path], str] = location.file_system,
        is_rebuilding: bool = False,
    ) -> None:
        super().__init__(path, clock=clock, file_system=file_system, is_rebuilding=is_rebuilding)
        if self._is_read_only:
            return
        if not self._journal.path.exists():
            self._shorten_journal()
        elif self._is_copy():
            self._follow_journal()

    def journaled(self) -> Journaled:
        """What the journal says; later changes get higher numbers than any in it."""
        with self._writing() as db:
            found = self._journal.read()
            db.execute("UPDATE counter SET value = max(value, ?) WHERE name = 'generation'", (found.last_number,))
            return found

    def _is_copy(self) -> bool:
        with self._reading() as db:
            return db.execute("SELECT 1 FROM counter WHERE name = ?", (COPIED,)).fetchone() is not None

    def _follow_journal(self) -> None:
        """A backup was put in the place of a database that went on: what it knows is what counts from now on."""
        with self._writing() as db:
            if self._is_copy():
                self.journaled()
                self._write_journal()
                db.execute("DELETE FROM counter WHERE name = ?", (COPIED,))

    def _shorten_journal(self) -> None:
        with self._reading() as db:
            (count,) = db.execute(
                "SELECT (SELECT COUNT(*) FROM image) + (SELECT COUNT(*) FROM content_label)"
                " + (SELECT COUNT(*) FROM lease)"
            ).fetchone()
        if self._journal.is_due(count):
            with self._writing():
                self._write_journal()

    def _write_journal(self) -> None:
        number = self._number_change()
        self._journal.rewrite(number, self.find_images(), self._all_labels(), self._lasting_leases())

    def expire(self) -> int:
        """Delete expired leases, and records whose gc.expire label is past; return how many."""
        with self._writing():
            return len(self.remove_images(self._expired_images())) + self._expire_leases()

    def tidy(self) -> None:
        """Shorten the journal if it is much longer than its records need."""
        self._shorten_journal()
