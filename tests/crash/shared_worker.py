"""One process at work on a shared store until it is killed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from tests.crash import shared_images

if TYPE_CHECKING:
    from imagestore import Digest, ImageStore

#: The longest nap in front of or behind a statement or a request to the bucket, so that processes meet in the windows
#: between; and one where a sweep decides, whose windows are few.
_NAP_SECONDS: Final = 0.01
_LONG_NAP_SECONDS: Final = 0.15
_NAP_CHANCE: Final = 0.3
#: Parts of a sweep's statements, which lock, ask and delete.
_SWEEPING: Final = ("FOR UPDATE SKIP LOCKED", "WITH RECURSIVE asked", "DELETE FROM content")
#: Inside the statement that locks, for each row: between what it sees and what it locks.
_NAP_INSIDE: Final = " WHERE pg_sleep(0.015) IS NOT NULL AND "
_MACHINES: Final = 3
#: In per cent, as the figures of docs/decisions.
_WORK: Final = {"pull": 38, "keep": 8, "read": 18, "remove": 24, "import": 2, "collect": 10}
#: References that are removed at a time, at most: else most images would be there most of the time.
_MOST_REMOVED: Final = 4


@dataclass(frozen=True)
class Place:
    """Where workers work.

    Attributes:
        database: the database's URL.
        bucket: URL of the bucket and prefix.
        endpoint: of the bucket's service.
        access_key: for the bucket.
        secret_key: for the bucket.
        scopes: of records; workers are spread over them.
        folder: of this machine's files: ingests, archives and reports.
        lease_seconds: how long a lease holds content without renewal.
        variant: the rule of the protocol that is left out; empty for none.
    """

    database: str
    bucket: str
    endpoint: str
    access_key: str
    secret_key: str
    scopes: tuple[str, ...]
    folder: Path
    lease_seconds: float
    variant: str = ""

    @property
    def archive(self) -> Path:
        """An OCI layout with all images."""
        return self.folder / "archive"

    def report(self, number: int) -> Path:
        """What a worker writes; it is there once the worker has opened the store."""
        return self.folder / "reports" / f"{number}.jsonl"


class Report:
    """What a worker saw: a line is written at once, since the worker may die at any time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, kind: str, text: str) -> None:
        """Write a line: ``done``, ``failed`` or ``violation``."""
        os.write(self._file, (json.dumps([kind, text]) + "\n").encode())


def run(place: Place, number: int, seed: int) -> None:
    """Pull, read, remove, import and collect in a random order, for ever.

    Args:
        place: where.
        number: of this worker.
        seed: decides the order of work and the naps.
    """
    from imagestore.errors import ImageStoreError

    # What libraries say about lost connections is expected, and would fill the terminal.
    logging.disable()
    prepare(place, machine=number % _MACHINES)
    chance = random.Random(seed)
    _take_naps(random.Random(seed + 1))
    scope = place.scopes[number % len(place.scopes)]
    report: Report | None = None
    while True:
        try:
            with opened(place, scope) as store:
                report = report or Report(place.report(number))
                _Worker(place, scope, store, report, chance).work(20)
        except ImageStoreError as error:
            # The database or the bucket is away: that is noted, and tried again.
            report = report or Report(place.report(number))
            report.note("failed", f"open: {type(error).__name__}: {error}")
            time.sleep(0.05)
        except BaseException:  # noqa: BLE001 - every other error is a finding
            report = report or Report(place.report(number))
            report.note("violation", traceback.format_exc())
            os._exit(1)


def prepare(place: Place, *, machine: int) -> None:
    """Set up this process: credentials, short leases, the variant of the protocol.

    Args:
        place: where.
        machine: the processes of one have a folder in common, for what they are writing.
    """
    from imagestore.store import adapters, leases
    from tests.crash import shared_variants

    for name in [name for name in os.environ if name.startswith(("AWS_", "PG"))]:
        del os.environ[name]
    os.environ["AWS_ACCESS_KEY_ID"] = place.access_key
    os.environ["AWS_SECRET_ACCESS_KEY"] = place.secret_key
    os.environ["AWS_ENDPOINT_URL"] = place.endpoint
    mock.patch.object(adapters, "machine_folder", return_value=place.folder / f"machine-{machine}").start()
    mock.patch.object(leases, "LIFETIME_SECONDS", place.lease_seconds).start()
    shared_variants.leave_out(place.variant, setattr)


def opened(place: Place, scope: str) -> ImageStore:
    """The shared store, for one scope."""
    import imagestore
    from imagestore.testing import Registry

    registry = Registry(shared_images.images())
    return imagestore.open(place.database, content=place.bucket, scope=scope, transport=registry.transport)


def _take_naps(chance: random.Random) -> None:
    """Sleep now and then before and behind each statement and each change of the bucket."""
    import obstore
    import psycopg

    execute: Callable[..., Any] = psycopg.Cursor.execute

    def nap(longest: float) -> None:
        if chance.random() < _NAP_CHANCE:
            time.sleep(chance.uniform(0, longest))

    def executing(cursor: Any, query: str, *arguments: Any, **options: Any) -> Any:
        longest = _LONG_NAP_SECONDS if any(part in query for part in _SWEEPING) else _NAP_SECONDS
        if "FROM content" in query and _SWEEPING[0] in query and chance.random() < _NAP_CHANCE:
            query = query.replace(" WHERE ", _NAP_INSIDE, 1)
        nap(_NAP_SECONDS)
        result = execute(cursor, query, *arguments, **options)
        nap(longest)
        return result

    def changing(change: Callable[..., Any]) -> Callable[..., Any]:
        def with_naps(*arguments: Any, **options: Any) -> Any:
            nap(_LONG_NAP_SECONDS)
            result = change(*arguments, **options)
            nap(_NAP_SECONDS)
            return result

        return with_naps

    mock.patch.object(psycopg.Cursor, "execute", executing).start()
    for name in ("put", "delete"):
        mock.patch.object(obstore, name, changing(getattr(obstore, name))).start()


class _Worker:
    def __init__(self, place: Place, scope: str, store: ImageStore, report: Report, chance: random.Random) -> None:
        self._place = place
        self._store = store
        self._report = report
        self._chance = chance
        # One scope has few images: content that two scopes hold is seldom swept.
        is_main = scope == place.scopes[0]
        self._references = shared_images.REFERENCES[: None if is_main else 2]

    def work(self, times: int) -> None:
        """Do some things in turn."""
        from imagestore.errors import ImageStoreError

        for _ in range(times):
            reference = self._chance.choice(self._references)
            (kind,) = self._chance.choices(list(_WORK), list(_WORK.values()))
            begun = time.monotonic()
            try:
                self._do(kind, reference)
            except ImageStoreError as error:
                # Whoever is slower than a lease may lose content, and is told so.
                late = "" if self._is_leased(begun) else " (slower than a lease)"
                self._report.note("failed", f"{kind}{late}: {type(error).__name__}: {error}")
            else:
                self._report.note("done", kind)

    def _do(self, kind: str, reference: str) -> None:
        match kind:
            case "pull":
                self._store.pull(reference)
            case "keep":
                self._keep(reference)
            case "read":
                self._read(reference)
            case "remove":
                self._remove()
            case "import":
                self._import(reference)
            case "collect":
                self._store.collect_garbage()

    def _remove(self) -> None:
        count = self._chance.randint(1, min(_MOST_REMOVED, len(self._references)))
        for reference in self._chance.sample(self._references, count):
            self._store.remove(reference, collect=self._chance.choice([False, True]))

    def _import(self, reference: str) -> None:
        from imagestore import ImportOptions

        options = ImportOptions(images=(reference,), replace=True)
        self._store.import_images(self._place.archive, options=options)

    def _keep(self, reference: str) -> None:
        """Pull under a lease: then all of it is there until the lease ends, whoever removes the record."""
        with self._leased(reference) as begun:
            self._store.pull(reference)
            self._hash_all(shared_images.content_of(reference), begun, f"{reference}, pulled under a lease")

    def _read(self, reference: str) -> None:
        """Lease, then look: what is there then stays, and all that a record needs is there."""
        from imagestore.errors import ImageNotFoundError

        needed = shared_images.content_of(reference)
        with self._leased(reference) as begun:
            present = {digest for digest in needed if self._store.content.exists(digest)}
            why = f"{reference}, leased and there"
            with contextlib.suppress(ImageNotFoundError):
                self._store.get(reference)
                present, why = set(needed), f"{reference}, leased and recorded"
            self._hash_all(present, begun, why)

    @contextlib.contextmanager
    def _leased(self, reference: str) -> Iterator[float]:
        """Hold an image's content; the time from which the lease lasts at least."""
        begun = time.monotonic()
        with self._store.hold(shared_images.content_of(reference)):
            yield begun

    def _is_leased(self, begun: float) -> bool:
        return time.monotonic() - begun < self._place.lease_seconds

    def _hash_all(self, digests: set[Digest] | frozenset[Digest], begun: float, why: str) -> None:
        """Read every byte; what is missing or wrong is a violation while the lease lasts."""
        from imagestore.errors import ContentNotFoundError, IntegrityError
        from imagestore.oci import Verifier

        for digest in sorted(digests):
            verifier = Verifier(digest)
            try:
                with self._store.content.open(digest) as file:
                    while piece := file.read(1 << 20):
                        verifier.update(piece)
                verifier.finish()
            except (ContentNotFoundError, IntegrityError) as error:
                if self._is_leased(begun):
                    self._report.note("violation", f"{why}: {type(error).__name__}: {error}")
                return
