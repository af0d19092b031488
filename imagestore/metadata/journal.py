"""The journal of records: a second memory beside the database, to rebuild the records from when that is damaged.

``records.jsonl`` holds one JSON value a line, each with the number of its change: a record that was put, or the key of
one that was removed; the labels of content; a lease that was made to last, or the id of one that was released. What is
put is written before its commit and what is removed after it, so that whoever dies between the two leaves the journal
with an entry too many, never with one too few; the numbers put them in order. Nothing is synced: a rebuild checks each
record against the content anyway.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import math
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from imagestore import gc_labels
from imagestore.digest import Digest
from imagestore.failpoint import reach
from imagestore.metadata import rows
from imagestore.metadata.api import Lease
from imagestore.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO, Self

    from imagestore.metadata.api import ImageRecord

# A record takes some 1.5 kB; a journal several times as long as its records need is written anew.
_RECORD_BYTES: Final = 4096
_SMALLEST_BYTES: Final = 1024 * 1024
_LONGEST_LINE_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Journaled:
    """What a journal says.

    Attributes:
        candidates: for each key what its record may be, the newest first.
        labels: the last known labels by content.
        leases: the last known form of each lease that was not released, with what it lists.
        unreadable: how many lines can't be read.
        last_number: the highest number of a change.
    """

    candidates: list[list[ImageRecord]]
    labels: dict[Digest, dict[str, str]]
    leases: list[tuple[Lease, tuple[Digest, ...]]]
    unreadable: int
    last_number: int


class RecordJournal:
    """The journal in one file; made when the first record comes.

    Whoever puts holds the database's write lock; removals come after their commit and so without it. Each append holds
    a shared flock on the file, an exchange of the file an exclusive one, so that no line goes into a file that is gone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def beside(cls, database: Path) -> Self:
        """The journal of a database."""
        return cls(database.with_name("records.jsonl"))

    def put(self, number: int, records: Iterable[ImageRecord]) -> None:
        """Add records; inside the transaction that puts them.

        Raises:
            OSError: the file can't be written.
        """
        self._append([_put(number, record) for record in records])

    def remove(self, number: int, keys: Iterable[tuple[str, str]]) -> None:
        """Note removals; after the commit of the transaction that numbered them.

        Raises:
            OSError: the file can't be written.
        """
        self._append([json.dumps({"number": number, "remove": list(key)}) for key in keys])

    def put_labels(self, number: int, digest: Digest, labels: Mapping[str, str]) -> None:
        """Note the labels that content has now; inside the transaction.

        Raises:
            OSError: the file can't be written.
        """
        self._append([_labels(number, digest, labels)])

    def put_lease(self, number: int, lease: Lease, content: Collection[Digest]) -> None:
        """Note a lease and what it lists now; inside the transaction.

        Raises:
            OSError: the file can't be written.
        """
        self._append([_lease(number, lease, content)])

    def release(self, number: int, lease_id: str) -> None:
        """Note that a lease is gone; after the commit.

        Raises:
            OSError: the file can't be written.
        """
        self._append([json.dumps({"number": number, "release": lease_id})])

    def _append(self, entries: Iterable[str]) -> None:
        # A line break first: what a full disk cut off must not spoil the next entry.
        data = "".join(f"\n{entry}" for entry in entries).encode()
        descriptor = self._open_shared()
        try:
            reach("journal-append")
            rest = memoryview(data)
            while rest:  # a disk that fills up takes a part first, and says so only at the next
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)

    def _open_shared(self) -> int:
        while True:
            reach("journal-open")
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _is_named(descriptor, self.path):
                return descriptor
            os.close(descriptor)

    def size(self) -> int:
        """Its length in bytes."""
        try:
            return os.stat(self.path).st_size
        except FileNotFoundError:
            return 0

    def has_entries(self) -> bool:
        """Whether the journal knows anything."""
        return self.size() > 0

    def is_long(self) -> bool:
        """Whether it is worth asking how many records there are."""
        return self.size() > _SMALLEST_BYTES or not self.path.exists()

    def is_due(self, records: int) -> bool:
        """Whether the journal is missing, or much longer than so many records need."""
        if not self.path.exists():
            return records > 0
        return self.size() > _SMALLEST_BYTES + records * _RECORD_BYTES

    @contextlib.contextmanager
    def prepared(
        self,
        number: int,
        records: Iterable[ImageRecord],
        labels: Iterable[tuple[Digest, Mapping[str, str]]],
        leases: Iterable[tuple[Lease, Collection[Digest]]],
    ) -> Iterator[BinaryIO | None]:
        """A new journal beside this one, with an entry for each record, labelled content and lasting lease.

        Written without any lock; gone with the block.

        Yields:
            The open file, for exchange(); None while another process prepares one.

        Raises:
            OSError: it can't be written.
        """
        temporary = f"{self.path}.tmp"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        entries = itertools.chain(
            (_put(number, record) for record in records),
            (_labels(number, digest, each) for digest, each in labels),
            (_lease(number, lease, content) for lease, content in leases),
        )
        with open(descriptor, "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            if not _is_named(descriptor, temporary):  # whoever had the lock before us exchanged it
                yield None
                return
            try:
                file.truncate()
                file.writelines(f"\n{entry}".encode() for entry in entries)
                file.flush()
                reach("journal-sync")
                os.fsync(descriptor)
                yield file
            finally:
                if _is_named(descriptor, temporary):
                    os.unlink(temporary)

    def exchange(self, prepared: BinaryIO, start: int) -> bool:
        """Put a prepared journal in this one's place, with the lines that came since; under the write lock.

        Args:
            prepared: with the records as they were when this journal was ``start`` bytes long.
            start: that length.

        Returns:
            Whether it was exchanged; not while somebody appends, or when somebody else exchanged it.

        Raises:
            OSError: it can't be written; this one stays.
        """
        with open(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb") as current:
            try:
                fcntl.flock(current, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if not _is_named(current.fileno(), self.path) or os.fstat(current.fileno()).st_size < start:
                return False
            current.seek(start)
            shutil.copyfileobj(current, prepared)
            prepared.flush()
            reach("journal-rename")
            os.replace(f"{self.path}.tmp", self.path)
            return True

    def read(self) -> Journaled:
        """What it says."""
        found = _Found()
        unreadable = 0
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            while line := file.readline(_LONGEST_LINE_BYTES):
                if not line.strip():
                    continue
                try:
                    found.add(json.loads(line))
                except (ValueError, TypeError, KeyError, RecursionError):
                    unreadable += 1
        return Journaled(found.candidates(), found.labels(), found.leases(), unreadable, found.last_number)


class _Found:
    """Entries by key; within one number the later line is the newer."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], list[tuple[int, ImageRecord]]] = {}
        self._removed: dict[tuple[str, str], int] = {}
        self._labels: dict[Digest, tuple[int, dict[str, str]]] = {}
        self._leases: dict[str, tuple[int, tuple[Lease, tuple[Digest, ...]] | None]] = {}
        self.last_number = 0

    def add(self, entry: Any) -> None:
        number = int(entry["number"])
        if not 0 <= number < 2**62:
            raise ValueError(number)
        if "put" in entry:
            record = rows.to_record(entry["put"])
            self._records.setdefault((record.reference, record.handler), []).append((number, record))
        elif "remove" in entry:
            reference, handler = entry["remove"]
            key = (str(reference), str(handler))
            self._removed[key] = max(number, self._removed.get(key, 0))
        elif "labels" in entry:
            text, labels = entry["labels"]
            self._label(Digest.parse(text), number, gc_labels.checked(dict(labels)))
        else:
            self._add_lease(entry, number)
        self.last_number = max(number, self.last_number)

    def _label(self, digest: Digest, number: int, labels: dict[str, str]) -> None:
        if number >= self._labels.get(digest, (0, {}))[0]:
            self._labels[digest] = number, labels

    def _add_lease(self, entry: Any, number: int) -> None:
        if "release" in entry:
            lease_id, found = str(entry["release"]), None
        else:
            lease_id, created_at, expires_at, is_flat, labels, content, namespace = entry["lease"]
            end = math.inf if expires_at is None else float(expires_at)
            lease = Lease(
                str(lease_id), float(created_at), end, bool(is_flat), gc_labels.checked(dict(labels)), str(namespace)
            )
            found = lease, tuple(Digest.parse(text) for text in content)
        if number >= self._leases.get(lease_id, (0, None))[0]:
            self._leases[lease_id] = number, found

    def labels(self) -> dict[Digest, dict[str, str]]:
        return {digest: labels for digest, (_, labels) in sorted(self._labels.items()) if labels}

    def leases(self) -> list[tuple[Lease, tuple[Digest, ...]]]:
        return [found for _, (_, found) in sorted(self._leases.items()) if found is not None]

    def candidates(self) -> list[list[ImageRecord]]:
        found = []
        for key in sorted(self._records):
            entries = sorted(self._records[key], key=lambda entry: entry[0])
            alive = [record for number, record in entries if number > self._removed.get(key, 0)]
            if alive:
                found.append(alive[::-1])
        return found


def _is_named(descriptor: int, path: str | Path) -> bool:
    """Whether an open file still has this name."""
    try:
        ours, named = os.fstat(descriptor), os.stat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def _put(number: int, record: ImageRecord) -> str:
    values = rows.from_record(record, created_at=record.created_at, updated_at=record.updated_at)
    return json.dumps({"number": number, "put": [*values, json.dumps([str(digest) for digest in record.roots])]})


def _labels(number: int, digest: Digest, labels: Mapping[str, str]) -> str:
    return json.dumps({"number": number, "labels": [str(digest), dict(labels)]})


def _lease(number: int, lease: Lease, content: Collection[Digest]) -> str:
    end = None if math.isinf(lease.expires_at) else lease.expires_at
    listed = [str(digest) for digest in content]
    values = [lease.id, lease.created_at, end, lease.is_flat, dict(lease.labels), listed, lease.namespace]
    return json.dumps({"number": number, "lease": values})
