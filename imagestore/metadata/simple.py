"""A metadata adapter over any database that understands SQLite's SQL, for one process: the smallest that there can be.

A subclass runs statements. There is one transaction at a time, and what is kept is answered by marking everything that
is kept: right for thousands of images. ``sqlite/`` and ``postgres/`` answer with indexes, and for many processes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from imagestore.errors import StoreCorruptError, UnsupportedError
from imagestore.metadata import graph, sql
from imagestore.metadata.graph import Graph
from imagestore.metadata.images import Images
from imagestore.metadata.leases import Leases
from imagestore.metadata.marking import in_order, mark
from imagestore.metadata.named_images import NamedImages
from imagestore.metadata.namespaces import Namespaces
from imagestore.metadata.sql import Statements
from imagestore.metadata.sqlite import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from imagestore.metadata.sql import Cursor
    from imagestore.oci.digest import Digest

    Execute = Callable[[str, Mapping[str, object]], Cursor]


class OneProcess:
    """The answers of a store whose database only this process uses."""

    batch_size = 0
    is_unchanging = is_inherited = False

    def leasing(self) -> AbstractContextManager[object]:
        """Nothing: the lock isn't held while content is looked for."""
        return contextlib.nullcontext()

    def is_awaited(self) -> bool:
        """False: the lock's waiters come next by themselves."""
        return False

    def give_way(self) -> None:
        """Nothing, as is_awaited()."""

    def tidy(self) -> None:
        """Nothing: no space is kept back."""

    def keep_copy(self, *, at_once: bool = False) -> None:
        """Nothing: copies of the database are the program's own."""

    def damage(self) -> tuple[str, ...]:
        """Nothing that is known of."""
        return ()

    def generation(self) -> int | None:
        """None: changes aren't counted."""

    def is_outdated(self) -> bool:
        """False: no other process changes anything."""
        return False

    def check_process(self) -> None:
        """Nothing: the program doesn't fork while the store is open."""

    def backup(self, target: Path) -> None:
        """Not supported: copies of the database are the program's own.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("these records make no backup; copy their database instead")

    def close(self) -> None:
        """Nothing: a subclass closes its database."""


class SimpleMetadataStore(OneProcess, ABC):
    """A MetadataStore for one process at a time, over a database with SQLite's SQL; thread-safe.

    A subclass opens its database, then calls ``super().__init__()``, which makes the tables where there are none.

    Raises:
        StoreError: the database fails.
        StoreCorruptError: a newer version wrote it.
    """

    def __init__(self) -> None:
        self._tables = tables = SimpleTables(self.execute)
        # Rows go with what they belong to; the setting counts outside of a transaction only.
        self.execute("PRAGMA foreign_keys = ON", {})
        with tables.writing() as db:
            ((version,),) = db.rows("PRAGMA user_version")
            if version > schema.CURRENT:
                raise StoreCorruptError(f"the records have schema version {version}, newer than {schema.CURRENT}")
            for step in schema.STEPS[version:]:
                for statement in step:
                    db.run(statement)
            db.run(f"PRAGMA user_version = {schema.CURRENT}")
            (self.store_id,) = db.texts("SELECT id FROM store")
        self.leases = Leases(tables)
        self.images = Images(tables, self.leases)
        self.named_images = NamedImages(tables)
        self.graph = MarkedGraph(tables)
        self.namespaces = Namespaces(tables, self.graph)

    @abstractmethod
    def execute(self, text: str, values: Mapping[str, object], /) -> Cursor:
        """Run one statement, BEGIN, COMMIT and ROLLBACK among them; from any thread, one at a time.

        Args:
            text: in SQLite's SQL, with parameters as ``:name``.
            values: texts, numbers or None by the parameters' names; there may be more of them than parameters.

        Raises:
            StoreError: the database fails.
        """

    def recording(self, keys: Collection[tuple[str, str]]) -> AbstractContextManager[object]:
        """As exclusive(): there is one writer at a time."""
        return self._tables.writing()

    def exclusive(self) -> AbstractContextManager[object]:
        """A transaction; nothing else changes until it ends."""
        return self._tables.writing()

    batch = transient = exclusive

    def expire(self) -> int:
        """Delete expired leases, and images whose gc.expire label is past and that no lease names; return how many."""
        return self.images.expire() + self.named_images.expire() + self.leases.expire()


class SimpleStatements(Statements):
    """Statements in SQLite's spelling."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def execute(self, text: str, **values: object) -> Cursor:
        """Run a statement."""
        sql.lists_as_json(values)
        return self._execute(sql.sqlite(text), {"now": time.time(), **values})

    def each(self, text: str, **values: object) -> Iterator[tuple[Any, ...]]:
        """The rows of a query."""
        return iter(self.rows(text, **values))

    def pipeline(self) -> AbstractContextManager[object]:
        """Nothing: each statement waits for its result."""
        return contextlib.nullcontext()


class SimpleTables:
    """One lock for all, and one transaction at a time; see the port."""

    def __init__(self, execute: Execute) -> None:
        self._statements = SimpleStatements(execute)
        self._lock = threading.RLock()
        self._depth = 0

    @contextlib.contextmanager
    def writing(self) -> Iterator[Statements]:
        """A transaction; an inner block joins it."""
        with self._lock:
            is_outer = self._depth == 0
            if is_outer:
                self._statements.run("BEGIN")
            self._depth += 1
            try:
                yield self._statements
                if is_outer:
                    self._statements.run("COMMIT")
            except BaseException:
                if is_outer:
                    self._statements.run("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    reading = snapshot = reading_whole = removing = batch = batch_alone = noting_use = writing

    @property
    def is_in_transaction(self) -> bool:
        """Whether this thread is in a transaction."""
        with self._lock:  # another thread's has ended then
            return self._depth > 0

    def note_change(self) -> None:
        """Nothing: no other process watches."""

    @contextlib.contextmanager
    def naming_damage(self) -> Iterator[None]:
        """Rows that can't be parsed are damage of this database.

        Raises:
            StoreCorruptError: one can't.
        """
        try:
            yield
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorruptError(f"a record can't be read: {error}") from error

    def refuse_hidden(self, table: str, column: str, condition: str, **values: object) -> None:
        """Nothing: the database's indexes are taken for whole."""


class MarkedGraph(Graph):
    """Every question is answered by marking all that is kept."""

    def garbage(self, present: Iterable[str]) -> list[str]:
        """What nothing keeps; what points at something comes first."""
        kept = self._kept()
        if kept is None:
            return []
        below = self.edges_as_written()
        with self._tables.reading() as db:
            rest = {*present, *below, *db.texts("SELECT digest FROM content_label")} - kept
        return [*in_order(rest & below.keys()), *in_order(rest - below.keys())]

    def unheld(self, texts: Sequence[str]) -> list[str]:
        """Those digests that nothing keeps now."""
        kept = self._kept()
        return [] if kept is None else [text for text in texts if text not in kept]

    def is_held(self, digest: Digest) -> bool:
        """Whether anything keeps this content now."""
        return not self.unheld([str(digest)])

    def is_kept_at_home(self, digest: Digest) -> bool:
        """Whether records, labels or named images of ``HOME``, or any lease, keep this content now."""
        kept = self._kept("FALSE")
        return kept is None or str(digest) in kept

    def refuse_damaged_indexes(self) -> None:
        """Nothing: the database's indexes are taken for whole."""

    def forget_content(self, texts: Collection[str]) -> None:
        """Remove labels of deleted content, and the edges that start there."""
        with self._tables.writing() as db:
            graph.forget(db, texts, graph.OF_CONTENT)

    def _kept(self, owners: str = "owner >= ''") -> set[str] | None:
        """What is kept, with the content of these owners; None is everything."""
        with self._tables.reading() as db:
            if db.row(graph.KEEPS_ALL_NOW):
                return None
            flat = db.texts(graph.FLAT_ROOTS.replace("owner >= ''", owners))
            below = self.edges_as_written()
            return mark(db.texts(graph.DEEP_ROOTS), lambda text: below.get(text, ())).union(flat)
