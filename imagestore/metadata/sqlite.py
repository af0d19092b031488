"""The metadata port in an embedded SQLite database; ``database`` has the rules of its transactions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from imagestore.metadata import location
from imagestore.metadata.graph import GraphTables
from imagestore.metadata.images import ImageTables
from imagestore.metadata.leases import LeaseTables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imagestore.metadata.api import ImageRecord


class SqliteMetadataStore(ImageTables, LeaseTables, GraphTables):
    """Records, edges, labels and leases in one file; arguments and errors are those of Database."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        file_system: Callable[[Path], str] = location.file_system,
    ) -> None:
        super().__init__(path, clock=clock, file_system=file_system)
        if not self._journal.path.exists():
            self._shorten_journal()

    def restorable(self) -> tuple[list[ImageRecord], int]:
        """The records as the journal has them, and how many of its lines can't be read."""
        with self._writing():
            return self._journal.read()

    def expire(self) -> int:
        """Delete expired leases, and records whose gc.expire label is past; return how many."""
        with self._writing():
            return len(self.remove_images(self._expired_images())) + self._expire_leases()

    def tidy(self) -> None:
        """Shorten the journal if it is much longer than its records need."""
        self._shorten_journal()
