"""One process at work on a shared store until it is killed."""

from __future__ import annotations

import contextlib
import json
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

#: The longest nap in front of a statement or a request to the bucket, so that processes meet in the windows between.
_NAP_SECONDS: Final = 0.01
_NAP_CHANCE: Final = 0.3
_MACHINES: Final = 3
#: In per cent, as the figures of docs/decisions.
_WORK: Final = {"pull": 40, "keep": 8, "read": 18, "remove": 18, "import": 4, "collect": 12}


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

    prepare(place, machine=number % _MACHINES)
    chance = random.Random(seed)
    _take_naps(random.Random(seed + 1))
    scope = place.scopes[number % len(place.scopes)]
    report: Report | None = None
    while True:
        try:
            with opened(place, scope) as store:
                report = report or Report(place.report(number))
                _Worker(place, store, report, chance).work(20)
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
    shared_variants.leave_out(place.variant)


def opened(place: Place, scope: str) -> ImageStore:
    """The shared store, for one scope."""
    import imagestore
    from imagestore.testing import Registry

    registry = Registry(shared_images.images())
    return imagestore.open(place.database, content=place.bucket, scope=scope, transport=registry.transport)


def _take_naps(chance: random.Random) -> None:
    """Sleep now and then in front of each statement, and before and behind each change of the bucket."""
    import obstore
    import psycopg

    def napping(call: Callable[..., Any]) -> Callable[..., Any]:
        def after_a_nap(*arguments: Any, **options: Any) -> Any:
            if chance.random() < _NAP_CHANCE:
                time.sleep(chance.uniform(0, _NAP_SECONDS))
            result = call(*arguments, **options)
            if chance.random() < _NAP_CHANCE:
                time.sleep(chance.uniform(0, _NAP_SECONDS))
            return result

        return after_a_nap

    for owner, name in ((psycopg.Cursor, "execute"), (obstore, "put"), (obstore, "delete")):
        mock.patch.object(owner, name, napping(getattr(owner, name))).start()


class _Worker:
    def __init__(self, place: Place, store: ImageStore, report: Report, chance: random.Random) -> None:
        self._place = place
        self._store = store
        self._report = report
        self._chance = chance

    def work(self, times: int) -> None:
        """Do some things in turn."""
        from imagestore.errors import ImageStoreError

        for _ in range(times):
            reference = self._chance.choice(shared_images.REFERENCES)
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
                removing = self._chance.choice([self._store.remove, self._store.delete])
                removing(reference)
            case "import":
                self._import(reference)
            case "collect":
                self._store.collect_garbage()

    def _import(self, reference: str) -> None:
        from imagestore import ImportOptions

        options = ImportOptions(images=(reference,), may_replace=True)
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
        from imagestore.oci.digest import Verifier

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
