"""The metadata port in an embedded SQLite database; ``database`` has the rules of its transactions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from imagestore.metadata import location
from imagestore.metadata.images import ImageTables
from imagestore.metadata.leases import LeaseTables
from imagestore.metadata.named_images import NamedImageTables
from imagestore.metadata.namespaces import NamespaceTables
from imagestore.metadata.watch import ChangeWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imagestore.metadata.journal import Journaled


class SqliteMetadataStore(ImageTables, LeaseTables, NamedImageTables, NamespaceTables):
    """Everything that is remembered, in one file; arguments and errors are those of Database."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        file_system: Callable[[Path], str] = location.file_system,
        is_rebuilding: bool = False,
    ) -> None:
        super().__init__(path, clock=clock, file_system=file_system, is_rebuilding=is_rebuilding)
        self._watch = ChangeWatch(self._address())
        if not self._journal.path.exists():
            self._shorten_journal()

    def generation(self) -> int | None:
        """A number that is another one after every change of a record, in any process; None when it can't be told."""
        return self._watch.generation()

    def journaled(self) -> Journaled:
        """What the journal says; later changes get higher numbers than any in it."""
        with self._writing() as db:
            found = self._journal.read()
            db.execute("UPDATE counter SET value = max(value, ?) WHERE name = 'generation'", (found.last_number,))
            return found

    def expire(self) -> int:
        """Delete expired leases, and images whose gc.expire label is past; return how many."""
        return self._expire_images() + self._expire_named_images() + self._expire_leases()

    def tidy(self) -> None:
        """Shorten the journal if it is much longer than its records need."""
        self._shorten_journal()

    def close(self) -> None:
        """Close the database."""
        self._watch.close()
        super().close()
