"""A metadata adapter in memory, with a graph of plain sets: what another database has to bring, and no more."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import threading
import time
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
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from imagestore.oci.digest import Digest


class MemoryStatements(Statements):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, text: str, **values: object) -> sqlite3.Cursor:
        sql.lists_as_json(values)
        return self._connection.execute(sql.sqlite(text), {"now": time.time(), **values})

    def each(self, text: str, **values: object) -> Iterator[tuple[Any, ...]]:
        return self.execute(text, **values)

    def pipeline(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()


class MemoryTables:
    """One lock for all, and one transaction at a time."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA foreign_keys = ON")
        for step in schema.STEPS:
            for statement in step:
                self._connection.execute(statement)
        self._lock = threading.RLock()

    def note_change(self) -> None:
        """Nobody watches it."""

    @contextlib.contextmanager
    def writing(self) -> Iterator[Statements]:
        with self._lock:
            is_outer = not self._connection.in_transaction
            if is_outer:
                self._connection.execute("BEGIN")
            try:
                yield MemoryStatements(self._connection)
            except BaseException:
                if is_outer:
                    self._connection.rollback()
                raise
            if is_outer:
                self._connection.commit()

    reading = snapshot = reading_whole = removing = batch = batch_alone = noting_use = writing

    @property
    def is_in_transaction(self) -> bool:
        return self._connection.in_transaction

    @contextlib.contextmanager
    def naming_damage(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorruptError(f"a record can't be read: {error}") from error

    def refuse_hidden(self, table: str, column: str, condition: str, **values: object) -> None:
        """Nothing: indexes in memory are whole."""


class MemoryGraph(Graph):
    """Every question is answered by marking all that is kept."""

    def _kept(self, owners: str = "owner >= ''") -> set[str] | None:
        """What is kept; None is everything."""
        with self._tables.reading() as db:
            if db.row(graph.KEEPS_ALL_NOW):
                return None
            flat = db.texts(graph.FLAT_ROOTS.replace("owner >= ''", owners))
            below = self.edges_as_written()
            return mark(db.texts(graph.DEEP_ROOTS), lambda text: below.get(text, ())).union(flat)

    def garbage(self, present: Iterable[str]) -> list[str]:
        kept = self._kept()
        if kept is None:
            return []
        below = self.edges_as_written()
        with self._tables.reading() as db:
            rest = {*present, *below, *db.texts("SELECT digest FROM content_label")} - kept
        return [*in_order(rest & below.keys()), *in_order(rest - below.keys())]

    def unheld(self, texts: Sequence[str]) -> list[str]:
        kept = self._kept()
        return [] if kept is None else [text for text in texts if text not in kept]

    def is_held(self, digest: Digest) -> bool:
        return not self.unheld([str(digest)])

    def is_kept_at_home(self, digest: Digest) -> bool:
        kept = self._kept("FALSE")
        return kept is None or str(digest) in kept

    def refuse_damaged_indexes(self) -> None:
        """Nothing: indexes in memory are whole."""

    def forget_content(self, texts: Collection[str]) -> None:
        with self._tables.writing() as db:
            graph.forget(db, texts, graph.OF_CONTENT)


class MemoryMetadataStore:
    """The records of one process."""

    is_unchanging = is_inherited = False

    def __init__(self) -> None:
        self._tables = tables = MemoryTables()
        self.store_id = secrets.token_hex(16)
        self.leases = Leases(tables)
        self.images = Images(tables, self.leases)
        self.named_images = NamedImages(tables)
        self.graph = MemoryGraph(tables)
        self.namespaces = Namespaces(tables, self.graph)

    def recording(self, keys: Collection[tuple[str, str]]) -> AbstractContextManager[object]:
        return self._tables.writing()

    def exclusive(self) -> AbstractContextManager[object]:
        return self._tables.writing()

    batch = transient = exclusive

    def is_awaited(self) -> bool:
        return False

    def give_way(self) -> None:
        """Nothing: the lock's waiters come next by themselves."""

    def expire(self) -> int:
        return self.images.expire() + self.named_images.expire() + self.leases.expire()

    def tidy(self) -> None:
        """Nothing grows."""

    batch_size = 0

    def keep_copy(self, *, at_once: bool = False) -> None:
        """Nothing lasts here."""

    def damage(self) -> tuple[str, ...]:
        return ()

    def generation(self) -> int | None:
        return None

    def is_outdated(self) -> bool:
        return False

    def check_process(self) -> None:
        """Nothing: nobody forks."""

    def backup(self, target: Path) -> None:
        raise UnsupportedError("records in memory have no backup")

    def close(self) -> None:
        """Nothing: another user may still need them."""
