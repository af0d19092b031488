"""The metadata port in an embedded SQLite database: its parts, and copies next to it."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

from imagestore.errors import StoreCorruptError
from imagestore.metadata.images import Images
from imagestore.metadata.leases import Leases
from imagestore.metadata.named_images import NamedImages
from imagestore.metadata.namespaces import Namespaces
from imagestore.metadata.sqlite import backup, integrity, location, schema
from imagestore.metadata.sqlite.changes import ChangeWatch
from imagestore.metadata.sqlite.database import Database
from imagestore.metadata.sqlite.failures import CORRUPT_HINT, Translated
from imagestore.metadata.sqlite.graph import SqliteGraph
from imagestore.metadata.sqlite.tables import SqliteTables
from imagestore.util.sqlite_version import check_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractContextManager
    from pathlib import Path


class SqliteMetadataStore:
    """The records of a store, in one file.

    Args:
        path: the database, on a local disk; created when missing.
        clock: seconds since 1970.
        file_system: returns what kind of file system a folder is on.
        is_rebuilding: this is the database that a rebuild makes, next to copies of the one that was there.
        is_freeing: on a disk too full to open it, release the ballast; else it can only be read there.
        on_making: called in the transaction that creates the tables, which only one process ever does.

    Raises:
        StoreError: it can't be opened, is damaged, is on a network file system, or was written by a newer version.
    """

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
        check_sqlite()
        self.database = Database(path, clock=clock, file_system=file_system, is_rebuilding=is_rebuilding)
        self.tables = tables = SqliteTables(self.database)
        self.leases = Leases(tables)
        self.images = Images(tables, self.leases)
        self.named_images = NamedImages(tables)
        self.graph = SqliteGraph(tables)
        self.namespaces = Namespaces(tables, self.graph)
        self.database.open(is_freeing=is_freeing, on_making=None if on_making is None else partial(on_making, self))
        with contextlib.ExitStack() as stack:
            # If the store can't be opened, the caller has nothing to close.
            stack.callback(self.database.close)
            with Translated(path):
                self._watch = ChangeWatch(path, self.database.access.address(mode="rw"))
            stack.callback(self._watch.close)
            stack.pop_all()

    def recording(self, keys: Collection[tuple[str, str]]) -> AbstractContextManager[object]:
        """As exclusive(): there is one writer at a time."""
        return self.database.exclusive()

    def exclusive(self) -> AbstractContextManager[object]:
        """Hold the database's write lock; commits at the end."""
        return self.database.exclusive()

    def batch(self) -> AbstractContextManager[object]:
        """As exclusive(), for one short step of a long work: yields to waiting writers first, and isn't synced."""
        return self.database.batch()

    @property
    def batch_size(self) -> int:
        """0: a batch ends as soon as a writer waits."""
        return 0

    def transient(self) -> AbstractContextManager[object]:
        """As exclusive(), for what only running work needs: not synced by itself."""
        return self.database.relaxed()

    def leasing(self) -> AbstractContextManager[object]:
        """Nothing: the write lock isn't held while files are looked for."""
        return contextlib.nullcontext()

    def is_awaited(self) -> bool:
        """Whether a writer waits, or a thread waits for this process's connection."""
        return self.database.is_awaited()

    def give_way(self) -> None:
        """Yield to waiting writers; between two steps of a long work."""
        self.database.give_way()

    @property
    def store_id(self) -> str:
        """What tells this store from any other; see the port."""
        with self.database.reading() as db:
            return schema.store_id(db, self.database.path)

    @property
    def is_unchanging(self) -> bool:
        """Whether no process can change anything: the disk is read-only. To be asked when a change was refused."""
        return self.database.access.is_unchanging()

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked after the database was opened."""
        return self.database.opened.is_inherited

    def check_process(self) -> None:
        """Refuse the work of a forked child before it waits for anything."""
        self.database.opened.check_process()

    def generation(self) -> int | None:
        """A number that differs after every change of a record, in any process; None when it can't be read."""
        is_ours = self.database.opened.is_still_there() and not self.database.access.was_overtaken
        return self._watch.generation() if is_ours else None

    def is_outdated(self) -> bool:
        """Whether the store has to be opened again to be current; see the port."""
        opened = self.database.opened
        try:
            return opened.is_replaced() or (opened.is_still_there() and self.database.access.was_overtaken)
        except OSError:  # the file is just being exchanged
            return False

    def expire(self) -> int:
        """Delete expired leases, and images whose gc.expire label is past and that no lease names; return how many."""
        with self.database.freeing():
            return self.images.expire() + self.named_images.expire() + self.leases.expire()

    def tidy(self) -> None:
        """Keep some space back again."""
        self.database.ballast.keep()

    def damage(self) -> tuple[str, ...]:
        """What is wrong with the file, or that an older one was put in its place, a line each."""
        with self.database.reading_apart() as db:
            found = integrity.damage(db)
        if found or self.database.access.only_reads:
            return found
        self.database.verified.note()
        with self.database.reading() as db:
            reason = self.database.changes.overtaken(db)
        return (reason,) if reason else ()

    def reindex(self) -> bool:
        """Rebuild every index from its table; False, and nothing is changed, when that doesn't repair the database."""
        path = self.database.path
        try:
            with self.database.writing() as db:
                db.execute("REINDEX")
                if integrity.damage(db):
                    raise StoreCorruptError(f"{path}: more than indexes is damaged", hint=CORRUPT_HINT)
        except StoreCorruptError:
            return False
        return True

    def backup(self, target: Path) -> None:
        """Write a consistent copy to a new file while others go on; see the port."""
        with self.database.reading_apart() as db:
            backup.copy_to(db, target)

    def keep_copy(self, *, at_once: bool = False) -> None:
        """Make a copy if it is due; see the port."""
        self.database.keep_copy(at_once=at_once)

    def close(self) -> None:
        """Close the database."""
        if not self.is_inherited:
            self._watch.close()
        self.database.close()
