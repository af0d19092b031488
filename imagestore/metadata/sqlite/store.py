"""The metadata port in an embedded SQLite database; ``database`` has the rules of its transactions."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

from imagestore.errors import StoreFullError
from imagestore.metadata.sqlite import location
from imagestore.metadata.sqlite.change_watch import ChangeWatch
from imagestore.metadata.sqlite.failures import Translated
from imagestore.metadata.sqlite.images import ImageTables
from imagestore.metadata.sqlite.leases import LeaseTables
from imagestore.metadata.sqlite.named_images import NamedImageTables
from imagestore.metadata.sqlite.namespaces import NamespaceTables
from imagestore.metadata.sqlite.schema import COPIED

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO

    from imagestore.metadata.sqlite.journal_reading import Journaled


class SqliteMetadataStore(ImageTables, LeaseTables, NamedImageTables, NamespaceTables):
    """Everything that is remembered, in one file; arguments and errors are those of Database."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        file_system: Callable[[Path], str] = location.file_system,
        is_rebuilding: bool = False,
        is_freeing: bool = True,
        on_making: Callable[[SqliteMetadataStore], None] | None = None,
    ) -> None:
        super().__init__(
            path,
            clock=clock,
            file_system=file_system,
            is_rebuilding=is_rebuilding,
            is_freeing=is_freeing,
            on_making=None if on_making is None else partial(on_making, self),
        )
        with contextlib.ExitStack() as stack:
            # If the store can't be opened, the caller has nothing to close.
            stack.callback(super().close)
            with Translated(path):
                self._watch = ChangeWatch(path, self._address(mode="rw"))
            stack.callback(self._watch.close)
            try:
                self._begin_journal()
            except StoreFullError:
                # As where the database itself needs it to be opened.
                if not (is_freeing and self.ballast.release()):
                    raise
                self._begin_journal()
            stack.pop_all()

    def _begin_journal(self) -> None:
        """Bring journal and database together where one of them was put next to the other."""
        if self._way.only_reads:
            return
        if not self._journal.path.exists():
            self._shorten_journal()
        elif self._is_copy():
            self._follow_journal()

    @property
    def is_unchanging(self) -> bool:
        """Whether no process can change anything: the disk is read-only. To be asked where a change was refused."""
        return self._way.is_unchanging()

    def generation(self) -> int | None:
        """A number that is another one after every change of a record, in any process; None when it can't be told."""
        is_ours = self._opened.is_still_there() and not self._way.was_overtaken
        return self._watch.generation() if is_ours else None

    def is_outdated(self) -> bool:
        """Whether the store has to be opened again, to know what is so now.

        Another file is in the database's place, or another process writes what could only be read when it was opened.
        """
        try:
            return self._opened.is_replaced() or (self._opened.is_still_there() and self._way.was_overtaken)
        except OSError:  # just now it is being exchanged
            return False

    def journaled(self) -> Journaled:
        """What the journal says; later changes get higher numbers than any in it."""
        with self._writing() as db:
            found = self._journal.read()
            db.execute("UPDATE counter SET value = max(value, ?) WHERE name = 'generation'", (found.last_number,))
            return found

    def known_to_journal(self) -> Journaled:
        """What the journal says, by this database's own word about which changes were committed."""
        with self._writing() as db:
            return self._journal.read(committed=self._numbering.last(db))

    def _is_copy(self) -> bool:
        with self._reading() as db:
            return db.execute("SELECT 1 FROM counter WHERE name = ?", (COPIED,)).fetchone() is not None

    def _follow_journal(self) -> None:
        """A backup was put in the place of a database that went on: what it knows is what counts from now on."""
        with self._writing() as db:
            if self._is_copy():
                self.journaled()
                with self._prepared(db, self._numbering.last(db)) as prepared:
                    if prepared is not None and self._journal.exchange(prepared, self._journal.size()):
                        db.execute("DELETE FROM counter WHERE name = ?", (COPIED,))

    def _shorten_journal(self) -> None:
        """Write the journal anew where it is missing or much too long; no caller waits for the writing."""
        if not self._journal.is_long():
            return
        with self._reading_apart() as db:
            (count,) = db.execute(
                "SELECT (SELECT COUNT(*) FROM image) + (SELECT COUNT(*) FROM content_label)"
                # A leased content's own line takes a sixteenth of what is allowed for a record.
                " + (SELECT COUNT(*) FROM lease) + (SELECT COUNT(*) / 16 FROM lease_content)"
            ).fetchone()
        if not self._journal.is_due(count):
            return
        with contextlib.ExitStack() as stack:
            with self._writing() as writing:
                # No writer is between an entry and its commit now: what the journal says up to here, the snapshot has.
                number, length = self._numbering.last(writing), self._journal.size()
                db = stack.enter_context(self._snapshot_apart())
            prepared = stack.enter_context(self._prepared(db, number))
            if prepared is not None:
                with self._writing():
                    self._journal.exchange(prepared, length)

    def _prepared(self, db: sqlite3.Connection, number: int) -> AbstractContextManager[BinaryIO | None]:
        return self._journal.prepared(number, self._records(db), self._all_labels(db), self._lasting_leases(db))

    def expire(self) -> int:
        """Delete expired leases, and images whose gc.expire label is past and that no lease names; return how many."""
        with self._freeing():
            return self._expire_images(self.leased_records) + self._expire_named_images() + self._expire_leases()

    def tidy(self) -> None:
        """Shorten the journal if it is much longer than its records need, and keep some space back again."""
        self._shorten_journal()
        self.ballast.keep()

    def close(self) -> None:
        """Close the database."""
        if not self.is_inherited:
            self._watch.close()
        super().close()
