"""The metadata port on PostgreSQL, for stores that several machines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import ImageStoreError, UnsupportedError
from imagestore.metadata.postgres.address import DEFAULT_SCOPE
from imagestore.metadata.postgres.database import PostgresDatabase
from imagestore.metadata.postgres.flights import Flights
from imagestore.metadata.postgres.images import ImageTables
from imagestore.metadata.postgres.leases import LeaseTables
from imagestore.metadata.postgres.named_images import NamedImageTables
from imagestore.metadata.postgres.namespaces import NamespaceTables
from imagestore.metadata.postgres.objects import PostgresObjectIndex
from imagestore.metadata.postgres.statements import SharedStatements

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class PostgresMetadataStore(ImageTables, LeaseTables, NamedImageTables, NamespaceTables):
    """Everything that is remembered, in a database; arguments and errors are those of PostgresDatabase."""

    def __init__(self, url: str, *, scope: str = DEFAULT_SCOPE, is_making: bool = True) -> None:
        super().__init__(url, scope=scope, is_making=is_making)
        self._flights = Flights(None if self.is_pooled else self.connect)
        #: Which object of the bucket holds which content.
        self.objects = PostgresObjectIndex(self, self._flights)

    def statements(self, name: str, *, version: int, tables: Sequence[str]) -> SharedStatements:
        """A room's own tables in this database and scope, with connections of their own; close them.

        Args:
            name: of the room.
            version: of the tables.
            tables: statements that make them; see SharedStatements.
        """
        return SharedStatements(
            PostgresDatabase(self._url, scope=self._scope), name=name, version=version, tables=tables
        )

    def generation(self) -> None:
        """None: a number that all who change something would have to write would put them in line."""

    def is_outdated(self) -> bool:
        """False: whatever server answers at the address has the records."""
        return False

    def expire(self) -> int:
        """Delete expired leases, and images whose gc.expire label is past and that no lease names; say how many."""
        return self._expire_images(self.leased_records) + self._expire_named_images() + self._expire_leases()

    def tidy(self) -> None:
        """Nothing: the server vacuums by itself."""

    def damage(self) -> tuple[str, ...]:
        """What is wrong with the database, a line each; the server watches over its files itself."""
        try:
            with self.reading() as db:
                db.execute("SELECT 1")
        except ImageStoreError as error:
            return (str(error),)
        return ()

    def backup(self, target: Path) -> None:
        """Refuse.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"{self.name}: PostgreSQL makes its own backups",
            hint="use pg_dump, or a base backup with its write-ahead log",
        )

    def close(self) -> None:
        """Close the connections."""
        if not self.is_inherited:
            self._flights.close()
        super().close()
