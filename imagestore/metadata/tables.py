"""What the parts of a store's metadata need of a database: transactions over its tables, and word of changes.

The differences that are on purpose: SQLite has one writer at a time (BEGIN IMMEDIATE), PostgreSQL has READ COMMITTED
with row locks; SQLite's long work takes turns with waiting writers and releases space on a full disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from imagestore.metadata.sql import Statements


class Tables(Protocol):
    """A database with the tables of this room.

    Blocks of one thread nest: what is inside a transaction joins it. Errors of the database come out as StoreError.
    """

    def note_change(self) -> None:
        """Called inside of each transaction that changes records, named images, namespaces, labels or a lasting lease.

        Who watches the store is to see that something changed.
        """

    def reading(self) -> AbstractContextManager[Statements]:
        """Reads that may see different states."""

    def snapshot(self) -> AbstractContextManager[Statements]:
        """Reads that see one state."""

    def reading_whole(self) -> AbstractContextManager[Statements]:
        """Reads of whole tables, that see one state and hold up no other caller."""

    def writing(self) -> AbstractContextManager[Statements]:
        """A transaction."""

    def removing(self) -> AbstractContextManager[Statements]:
        """A transaction that frees more space than it takes."""

    def batch(self) -> AbstractContextManager[Statements]:
        """A transaction for one short step of a long work; what a power cut may undo of it must be harmless."""

    def batch_alone(self) -> AbstractContextManager[Statements]:
        """As batch(), and nothing else changes until it ends."""

    def noting_use(self) -> AbstractContextManager[Statements]:
        """A change that a power cut may undo, and that isn't worth waiting for."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether this thread is in a transaction."""

    def naming_damage(self) -> AbstractContextManager[None]:
        """Rows that can't be parsed are damage of this database.

        Raises:
            StoreCorruptError: one can't.
        """

    def refuse_hidden(self, table: str, column: str, condition: str, **values: object) -> None:
        """A query by an index on this column found nothing: is that so in the table?

        No parameter of the condition is named like the column.

        Raises:
            StoreCorruptError: the index lacks a row.
        """
