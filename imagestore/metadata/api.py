"""The metadata port: a store's records, leases, and what keeps its content, over a database.

The parts are the same for every database: ``images``, ``leases``, ``named_images`` and ``namespaces`` have their SQL,
in the words of ``sql``. An adapter has the transactions (``tables``), the questions of a collection (``graph``), and
what stands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager
    from pathlib import Path

    from imagestore.metadata.graph import Graph
    from imagestore.metadata.images import Images
    from imagestore.metadata.leases import Leases
    from imagestore.metadata.named_images import NamedImages
    from imagestore.metadata.namespaces import Namespaces


class MetadataStore(Protocol):
    """The parts of a store's metadata, and transactions over them, shared by any number of processes."""

    @property
    def images(self) -> Images:
        """Image records."""

    @property
    def leases(self) -> Leases:
        """Leases."""

    @property
    def named_images(self) -> NamedImages:
        """Images of containerd's clients."""

    @property
    def namespaces(self) -> Namespaces:
        """Namespaces and the content they know."""

    @property
    def graph(self) -> Graph:
        """Edges, labels, and what they keep."""

    def recording(self, keys: Collection[tuple[str, str]]) -> AbstractContextManager[object]:
        """A transaction for putting the records of these (reference, handler), which excludes others that put them.

        Content that was found in it stays until its end.
        """

    def exclusive(self) -> AbstractContextManager[object]:
        """Hold the database's write lock, so that no lease and no record can appear; commits at the end.

        Raises:
            PreconditionError: this thread is in another transaction, of a store with many writers.
        """

    def batch(self) -> AbstractContextManager[object]:
        """As exclusive(), for one short step of a long work: yields to waiting writers first, and isn't synced.

        Only for changes that a power cut may undo without harm.
        """

    @property
    def batch_size(self) -> int:
        """Of how many contents a sweep's batch is made, where each question is a round trip; 0: as time allows."""

    def transient(self) -> AbstractContextManager[object]:
        """As exclusive(), for what only running work needs: a power cut, which ends the work, may undo it."""

    def leasing(self) -> AbstractContextManager[object]:
        """A block in which work leases content, and then looks for it.

        One transaction in few round trips, where the database says what is there; else each is by itself.
        """

    def is_awaited(self) -> bool:
        """Whether a writer waits, or a thread waits for this process's connection; then a batch should end soon."""

    def give_way(self) -> None:
        """Yield to waiting writers; between two steps of a long work."""

    def expire(self) -> int:
        """Delete expired leases, and images whose gc.expire label is past and that no lease names; return how many."""

    def tidy(self) -> None:
        """Maintenance in a collection: keep space back for removals again."""

    def keep_copy(self, *, at_once: bool = False) -> None:
        """Make a copy of the records, from which a rebuild restores them if the database is destroyed.

        Only if anything was written since the last one, and that is older than an hour. Where no copy can be made, the
        log says so. A service that keeps the records makes copies in its own way.

        Args:
            at_once: however young the last copy is.
        """

    def damage(self) -> tuple[str, ...]:
        """What is wrong with the database's own files, a line each."""

    def generation(self) -> int | None:
        """A number that differs after every change of a record, in any process; None when it can't be read."""

    def is_outdated(self) -> bool:
        """Whether the store has to be opened again to be current.

        Another file is in the database's place, or another process writes what could only be read when it was opened.
        """

    @property
    def store_id(self) -> str:
        """What tells this store from any other: 32 random hex digits, made with it.

        A copy of the records, such as a restored backup, has the same id.

        Raises:
            StoreReadOnlyError: an older version wrote the store, and the disk is read-only, so it has no id yet.
        """

    @property
    def is_unchanging(self) -> bool:
        """Whether no process can change anything: the disk is read-only. To be asked when a change was refused."""

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked after the database was opened."""

    def check_process(self) -> None:
        """Refuse the work of a forked child before it waits for anything.

        Raises:
            StoreError: this process was forked after the database was opened.
        """

    def backup(self, target: Path) -> None:
        """Copy the records to a new file while others go on.

        Raises:
            UnsupportedError: the service that keeps the records makes backups in another way.
            AlreadyExistsError, InvalidInputError, PreconditionError: the file exists already or can't be written.
            StoreError: the records can't be read.
        """

    def close(self) -> None:
        """Close the database."""
