"""The metadata port on PostgreSQL, for stores that several machines share: its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import ImageStoreError, UnsupportedError
from imagestore.metadata.images import Images
from imagestore.metadata.leases import Leases
from imagestore.metadata.named_images import NamedImages
from imagestore.metadata.namespaces import Namespaces
from imagestore.metadata.postgres.address import DEFAULT_SCOPE
from imagestore.metadata.postgres.database import PostgresDatabase
from imagestore.metadata.postgres.flights import Flights
from imagestore.metadata.postgres.graph import PostgresGraph
from imagestore.metadata.postgres.objects import PostgresObjectIndex
from imagestore.metadata.postgres.statements import SharedStatements
from imagestore.metadata.postgres.tables import PostgresTables

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path


class PostgresMetadataStore:
    """The records of a scope, and its index of the bucket's objects; arguments and errors are PostgresDatabase's."""

    def __init__(self, url: str, *, scope: str = DEFAULT_SCOPE, create: bool = True) -> None:
        self._url = url
        self.database = PostgresDatabase(url, scope=scope, is_making=create)
        tables = PostgresTables(self.database)
        self.leases = Leases(tables)
        self.images = Images(tables, self.leases)
        self.named_images = NamedImages(tables)
        self.graph = PostgresGraph(tables)
        self.namespaces = Namespaces(tables, self.graph)
        self._flights = Flights(None if self.database.is_pooled else self.database.connect)
        #: Which object of the bucket holds which content.
        self.objects = PostgresObjectIndex(self.database, self._flights)

    def statements(self, name: str, *, version: int, tables: Sequence[str]) -> SharedStatements:
        """A room's own tables in this database and scope, with connections of their own; close them.

        Args:
            name: of the room.
            version: of the tables.
            tables: statements that create them; see SharedStatements.
        """
        database = PostgresDatabase(self._url, scope=self.database.scope)
        return SharedStatements(database, name=name, version=version, tables=tables)

    def recording(self, keys: Collection[tuple[str, str]]) -> AbstractContextManager[object]:
        """A transaction for putting the records of these (reference, handler), which excludes others that put them."""
        return self.database.recording(keys)

    def exclusive(self) -> AbstractContextManager[object]:
        """Hold the store's lock alone, so that no lease and no record can appear; commits at the end."""
        return self.database.transaction(is_alone=True)

    def batch(self) -> AbstractContextManager[object]:
        """One short step of a long work."""
        return self.database.batch()

    @property
    def batch_size(self) -> int:
        """Many: other writers wait for these contents only."""
        return 512

    def transient(self) -> AbstractContextManager[object]:
        """A transaction as durable as any: a crash of the server ends no work of its clients."""
        return self.database.writing()

    def leasing(self) -> AbstractContextManager[object]:
        """One transaction."""
        return self.database.transaction(is_alone=False, is_pipelined=True)

    def is_awaited(self) -> bool:
        """False: writers wait in the server's queue, and proceed when a batch ends."""
        return False

    def give_way(self) -> None:
        """Nothing: the server's queue is fair."""

    @property
    def store_id(self) -> str:
        """What tells this store from any other; all scopes have the same id."""
        return self.database.id.replace("-", "")

    @property
    def is_unchanging(self) -> bool:
        """False: other machines can change the store although this one is refused."""
        return False

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked after the database was opened."""
        return self.database.is_inherited

    def check_process(self) -> None:
        """Refuse the work of a forked child before it waits for anything."""
        self.database.check_process()

    def generation(self) -> None:
        """None: a number that every change would have to write would serialize all writers."""

    def is_outdated(self) -> bool:
        """False: whatever server answers at the address has the records."""
        return False

    def expire(self) -> int:
        """Delete expired leases, and images whose gc.expire label is past and that no lease names; return how many."""
        return self.images.expire() + self.named_images.expire() + self.leases.expire()

    def tidy(self) -> None:
        """Nothing: the server vacuums by itself."""

    def keep_copy(self, *, at_once: bool = False) -> None:
        """Nothing: the server's operator makes backups."""

    def finish_upgrade(self) -> bool:
        """Finish an upgrade of the tables: programs of the version before are refused from now on.

        Returns:
            Whether there was one to finish.

        Raises:
            StoreCorruptError: a newer version began another upgrade, which only that one can finish.
        """
        return self.database.finish_upgrade()

    def damage(self) -> tuple[str, ...]:
        """Why the database can't be read, if so; the server checks its files itself."""
        try:
            with self.database.reading() as db:
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
            f"{self.database.name}: PostgreSQL makes its own backups",
            hint="use pg_dump, or a base backup with its write-ahead log",
        )

    def close(self) -> None:
        """Close the connections."""
        if not self.is_inherited:
            self._flights.close()
        self.database.close()
