"""The journal of records next to the database, from which a rebuild restores the records of a damaged database.

``records.jsonl`` holds one JSON value a line: the store's id, and, each with the number of its change, a record that
was put, or the key of one that was removed; the labels of content; a lease with a long lifetime, or the id of one that
was released. What is put is written before its commit and what is removed after it. So a process that dies in between
leaves an entry too many, never one too few (``journal_lines`` says how committed lines are told apart). Nothing is
synced: a rebuild checks each record against the content anyway.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from typing import TYPE_CHECKING, Final

from imagestore.metadata.sqlite import journal_lines as lines
from imagestore.metadata.sqlite.location import JOURNAL
from imagestore.util.failpoint import reach
from imagestore.util.file_locks import flock_shared
from imagestore.util.files import open_regular, opener

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO, Self

    from imagestore.metadata.records import ImageRecord, Lease
    from imagestore.metadata.sqlite.journal_reading import Journaled
    from imagestore.oci.digest import Digest

# A record takes some 1.5 kB; a journal several times as long as its records need is written anew.
_RECORD_BYTES: Final = 4096
_SMALLEST_BYTES: Final = 1024 * 1024
_LONGEST_LINE_BYTES: Final = 8 * 1024 * 1024
_TAIL_BYTES: Final = 16 * 1024


class RecordJournal:
    """The journal in one file, created with the first line.

    Each append holds a shared flock on the file, an exchange of the file an exclusive one, so that no line is written
    to a file that was replaced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_database(cls, database: Path) -> Self:
        """The journal of a database."""
        return cls(database.with_name(JOURNAL))

    def append(self, entries: Iterable[str]) -> None:
        """Add lines, which ``journal_lines`` writes: what is put before its commit, what is removed after it.

        Raises:
            OSError: the file can't be written.
        """
        # A line break first, so that a line which a full disk cut off doesn't spoil the next one.
        data = "".join(f"\n{entry}" for entry in entries).encode()
        descriptor = self._open_shared()
        try:
            reach("journal-append")
            rest = memoryview(data)
            while rest:  # a disk that becomes full takes a part, and fails only at the next write
                rest = rest[os.write(descriptor, rest) :]
        finally:
            # A child forked since then shares the open file, and would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _open_shared(self) -> int:
        while True:
            reach("journal-open")
            descriptor = open_regular(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            flock_shared(descriptor, self.path)
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
        """Whether it may be due for rewriting, so that the records have to be counted."""
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
        store_id: str,
        records: Iterable[ImageRecord],
        labels: Iterable[tuple[Digest, Mapping[str, str]]],
        leases: Iterable[tuple[Lease, Collection[Digest]]],
    ) -> Iterator[BinaryIO | None]:
        """A new journal next to this one with all records, labels and lasting leases, as of the change ``number``.

        Written without any lock; removed at the end of the block.

        Yields:
            The open file, for exchange(); None while another process prepares one.

        Raises:
            OSError: it can't be written.
        """
        temporary = f"{self.path}.tmp"
        descriptor = open_regular(temporary, os.O_RDWR | os.O_CREAT)
        entries = lines.whole(number, store_id, records, labels, leases)
        with open(descriptor, "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            if not _is_named(descriptor, temporary):  # the process that had the lock before made it the journal
                fcntl.flock(file, fcntl.LOCK_UN)
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
                # It may be the journal by now, and a child forked since then shares the open file.
                fcntl.flock(file, fcntl.LOCK_UN)

    def exchange(self, prepared: BinaryIO, start: int) -> bool:
        """Replace this journal by a prepared one, with the lines added since; under the write lock.

        Args:
            prepared: the new journal.
            start: the length of this journal when its content was read.

        Returns:
            Whether it was replaced; not while a writer appends, or when another process replaced it.

        Raises:
            OSError: it can't be written; this one stays.
        """
        with open(open_regular(self.path, os.O_RDWR | os.O_CREAT), "rb") as current:
            try:
                fcntl.flock(current, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            try:
                if not _is_named(current.fileno(), self.path) or os.fstat(current.fileno()).st_size < start:
                    return False
                current.seek(start)
                shutil.copyfileobj(current, prepared)
                prepared.flush()
                reach("journal-rename")
                os.replace(f"{self.path}.tmp", self.path)
                return True
            finally:
                fcntl.flock(current, fcntl.LOCK_UN)

    def committed(self) -> int:
        """The number of the last change that was certainly committed, read from the journal's end; 0: unknown.

        Raises:
            OSError: the file can't be read.
        """
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb", opener=opener) as file:
            end, rest = file.seek(0, os.SEEK_END), b""
            while end and len(rest) <= _LONGEST_LINE_BYTES:
                start = max(0, end - _TAIL_BYTES)
                file.seek(start)
                rest, *whole = (file.read(end - start) + rest).split(b"\n")
                if not start:
                    whole = [rest, *whole]
                for line in reversed(whole):
                    if number := lines.committed_number(line):
                        return number
                end = start
        return 0

    def read(self, *, committed: int | None = None) -> Journaled:
        """The state that its lines lead to.

        Args:
            committed: the database's last committed change, if that can be relied on; else some changes are uncertain.
        """
        from imagestore.metadata.sqlite.journal_reading import Reading  # only for a database that is damaged

        reading = Reading()
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb", opener=opener) as file:
            while line := file.readline(_LONGEST_LINE_BYTES):
                if line.strip():
                    reading.add(line)
        if committed is not None:
            reading.settle(committed)
        return reading.result()


def _is_named(descriptor: int, path: str | Path) -> bool:
    """Whether an open file still has this name."""
    try:
        ours, named = os.fstat(descriptor), os.stat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)
