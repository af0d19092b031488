"""Records, edges and leases in SQLite."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from imagestore import Descriptor, Digest, Platform
from imagestore.errors import (
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from imagestore.metadata.records import ImageRecord
from imagestore.metadata.sqlite import location
from imagestore.metadata.sqlite.database import Database
from imagestore.metadata.sqlite.failures import Translated
from imagestore.metadata.sqlite.opening import DatabaseAccess
from imagestore.metadata.sqlite.schema import CURRENT
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.oci.media_types import OCI_INDEX, OCI_MANIFEST
from imagestore.util.disk_reserve import BALLAST_BYTES
from tests.support.locks import locks_on
from tests.unit.metadata.keeping import Clock, digest


def kept(store: SqliteMetadataStore) -> set[Digest]:
    """What a collection would spare of everything these tests name."""
    names = ("index", "manifest one", "manifest two", "manifest config", "one", "two", "config", "layer", "a", "b")
    everything = {digest(name) for name in names}
    return everything - set(map(Digest.parse, store.graph.garbage(map(str, everything))))


def record(reference: str = "registry.example/a:1", handler: str = "runc", image: str = "config") -> ImageRecord:
    return ImageRecord(
        reference=reference,
        handler=handler,
        target=Descriptor(OCI_INDEX, digest("index"), 100),
        manifest=Descriptor(OCI_MANIFEST, digest(f"manifest {image}"), 10),
        image_id=digest(image),
        platform=Platform("windows", "amd64", "", "10.0.17763.1", ("win32k",)),
        wanted="windows(10.0.17763)/amd64",
        roots=(digest("index"), digest(f"manifest {image}")),
        content_size=123,
        labels={"k": "v"},
        warnings=("odd",),
    )


def edges(image: str = "config") -> dict[Digest, list[Digest]]:
    return {digest(f"manifest {image}"): [digest(image), digest("layer")]}


def test_a_lease_holds_content_until_released_or_expired(store: SqliteMetadataStore, clock: Clock) -> None:
    store.leases.create("pull-1", lifetime_seconds=100)
    store.leases.add_content("pull-1", [digest("a"), digest("b")])
    store.leases.add_content("pull-1", [digest("a")])
    assert kept(store) == {digest("a"), digest("b")}
    clock.now += 99
    store.leases.renew("pull-1", lifetime_seconds=100)
    clock.now += 99
    assert kept(store) == {digest("a"), digest("b")}
    assert store.expire() == 0
    clock.now += 1
    assert kept(store) == set()
    assert store.expire() == 1
    assert list(store.leases.find()) == []


def test_records_outlive_the_process(tmp_path: Path, store: SqliteMetadataStore) -> None:
    stored = store.images.put(record(), edges())
    store.close()
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as reopened:
        assert reopened.images.find() == [stored]


def test_a_newer_schema_is_refused(tmp_path: Path, store: SqliteMetadataStore) -> None:
    store.close()
    with sqlite3.connect(tmp_path / "metadata.db") as database:
        database.execute(f"PRAGMA user_version = {CURRENT + 1}")
    database.close()
    with pytest.raises(StoreCorruptError, match=f"schema version {CURRENT + 1} is newer"):
        SqliteMetadataStore(tmp_path / "metadata.db")


@pytest.mark.parametrize(
    "content", [b"this is no database at all, but it is long enough" * 100, b"SQLite format 3\0xx"]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError, match=r"metadata\.db"):
        SqliteMetadataStore(path)
    assert path.read_bytes() == content


def test_a_damaged_record_is_named_and_not_guessed(tmp_path: Path, store: SqliteMetadataStore) -> None:
    store.images.put(record(), {})
    store.close()
    with sqlite3.connect(tmp_path / "metadata.db") as database:
        database.execute("UPDATE image SET target = '[]'")
    database.close()
    with (
        contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as reopened,
        pytest.raises(StoreCorruptError, match="record can't be read"),
    ):
        reopened.images.find()


def test_a_folder_that_does_not_exist_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(StoreReadOnlyError):
        SqliteMetadataStore(tmp_path / "nowhere" / "metadata.db")


def test_a_store_that_can_not_be_opened_leaves_no_file_open(tmp_path: Path, store: SqliteMetadataStore) -> None:
    store.images.put(record(), edges())
    store.backup(tmp_path / "copy.db")
    store.close()
    (tmp_path / "copy.db").replace(tmp_path / "metadata.db")
    # A backup in the database's place goes on behind what the note knows, and this one can't be read.
    (tmp_path / "last-change.json").unlink()
    (tmp_path / "last-change.json").mkdir()
    with pytest.raises(StoreError, match=r"last-change\.json") as caught:
        SqliteMetadataStore(tmp_path / "metadata.db")
    # While somebody still looks at the error, which holds all that it passed through.
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    still_open = [os.readlink(link) for link in links if os.path.islink(link)]
    assert [name for name in still_open if name.startswith(str(tmp_path))] == [], str(caught.value)


def _write_many(path: Path, name: str) -> None:
    store = SqliteMetadataStore(path)
    for number in range(20):
        store.images.put(record(f"registry.example/{name}:{number}"), edges())
        store.leases.create(f"{name}-{number}", lifetime_seconds=10)
        store.leases.delete(f"{name}-{number}")
    store.close()


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write_many, args=(path, f"p{number}")) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert len(store.images.find()) == 60


@pytest.mark.parametrize("work", ["images.find()", "damage()", "backup(Path(sys.argv[1] + str(os.getpid())))"])
def test_a_store_opened_before_a_fork_is_refused_in_the_child(tmp_path: Path, work: str) -> None:
    code = (
        "import os, sys; from pathlib import Path;"
        "from imagestore.errors import StoreError; from imagestore.metadata.sqlite.store import SqliteMetadataStore;"
        "store = SqliteMetadataStore(Path(sys.argv[1]));"
        "child = os.fork();"
        # One write each: two processes share the pipe.
        f"\ntry: store.{work}; os.write(1, b'used\\n')"
        "\nexcept StoreError as error: os.write(1, f'{error}\\n'.encode())"
        "\nif child: os.wait()"
    )
    line = [sys.executable, "-c", code, str(tmp_path / "metadata.db")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    assert sorted(done.stdout.splitlines()) == [
        f"{tmp_path / 'metadata.db'}: this store was opened before the process forked",
        "used",
    ]


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE image (x)", "PRAGMA user_version = 1", "PRAGMA application_id = 7"]
)
def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "metadata.db"
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorruptError, match="another program's database"):
        SqliteMetadataStore(path)
    assert path.read_bytes() == before


def test_a_little_space_is_kept_back_and_given_up_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteMetadataStore(tmp_path / "metadata.db").close()
    ballast = tmp_path / "ballast"
    assert ballast.stat().st_size == BALLAST_BYTES
    prepare, failures = Database._prepare, [StoreFullError("full")]

    def full_once(database: Database, on_making: Callable[[], None] | None) -> None:
        if failures:
            raise failures.pop()
        prepare(database, on_making)

    monkeypatch.setattr(Database, "_prepare", full_once)
    SqliteMetadataStore(tmp_path / "metadata.db").close()
    assert not ballast.exists()
    SqliteMetadataStore(tmp_path / "metadata.db").close()
    assert ballast.exists()


def test_a_transaction_that_fails_at_its_very_begin_is_over(tmp_path: Path) -> None:
    """Everybody else would wait for it, and this process could write no more."""
    begin = (
        "import sys; from pathlib import Path\n"
        "from imagestore.metadata.sqlite.store import SqliteMetadataStore as Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for name in 'abc':\n"
        "    try: print(store.leases.create(name, lifetime_seconds=1).id)\n"
        "    except Exception as error: print(error)\n"
    )
    path = tmp_path / "metadata.db"
    # The first transaction makes the tables.
    environment = {**os.environ, "IMAGESTORE_FAILPOINT": "database-begun:3:ENOSPC"}
    command = [sys.executable, "-c", begin, os.fspath(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert done.stdout.splitlines() == ["a", f"{path}: No space left on device", "c"], done.stderr


def test_an_image_can_be_used_where_that_cannot_be_noted(store: SqliteMetadataStore, tmp_path: Path) -> None:
    """A sandbox that starts, or a pull of what is here, needs no space."""
    used = store.images.put(record(), {})
    touch = (
        "import sys; from pathlib import Path\n"
        "from imagestore.metadata.sqlite.store import SqliteMetadataStore as Store\n"
        "Store(Path(sys.argv[1])).images.touch(sys.argv[2], sys.argv[3])\n"
    )
    command = [sys.executable, "-c", touch, os.fspath(tmp_path / "metadata.db"), used.reference, used.handler]
    environment = {**os.environ, "IMAGESTORE_FAILPOINT": "touch-update:1:ENOSPC"}
    subprocess.run(command, env=environment, timeout=60, check=True)
    assert store.images.find() == [used]
    subprocess.run(command, timeout=60, check=True)
    assert store.images.find() != [used]


def test_a_text_that_is_none_is_damage(tmp_path: Path) -> None:
    """SQLite's own check lets it pass, so ours looks at all; and Python's module tells no code."""
    path = tmp_path / "metadata.db"
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        store.images.put(record(), {})
    path.write_bytes(path.read_bytes().replace(b"amd64", b"\xff\xffd64"))
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        (line,) = store.damage()
        assert line.startswith("table image: Could not decode to UTF-8")
        with pytest.raises(StoreCorruptError, match="UTF-8") as caught:
            store.images.find()
    assert "check --rebuild" in caught.value.hint


def test_all_who_make_the_database_at_once_get_it(tmp_path: Path) -> None:
    """SQLite answers "locked" without waiting when two turn the log on at once."""
    failures: list[Exception] = []
    for attempt in range(20):
        path = tmp_path / f"{attempt}.db"
        barrier = threading.Barrier(6)

        def make(path: Path = path, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                SqliteMetadataStore(path).close()
            except StoreError as error:
                failures.append(error)

        workers = [threading.Thread(target=make) for _ in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert failures == []


def test_looking_for_the_cause_of_a_failure_drops_no_lock(tmp_path: Path) -> None:
    """SQLite has its locks on descriptors of this process; to close another one of that file drops them."""
    path = tmp_path / "metadata.db"
    with contextlib.closing(SqliteMetadataStore(path)) as metadata:
        metadata.images.find()
        before = locks_on(tmp_path)
        assert location.cause(path) is None
        assert locks_on(tmp_path) == before
        assert before
    assert location.cause(tmp_path / "none") is None


def test_the_cause_of_a_failure_is_the_systems_and_costs_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metadata.db"
    system_open = os.open

    def fails(name: Path, flags: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EIO, "a disk that dies")
        return system_open(name, flags)

    with contextlib.closing(SqliteMetadataStore(path)) as metadata:
        metadata.images.find()
        before = locks_on(tmp_path)
        monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root may open everything
        assert location.cause(path) is None  # and can, after all
        assert locks_on(tmp_path) == before
        monkeypatch.setattr(os, "open", fails)
        assert location.cause(path) == errno.EIO


def test_a_disk_that_has_died_is_seen_beside_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, system_open = tmp_path / "metadata.db", os.open

    def fails(name: Path, flags: int) -> int:
        if Path(name).name == "last-change.json":
            raise OSError(errno.EIO, "a disk that has died")
        return system_open(name, flags)

    path.touch()
    (tmp_path / "last-change.json").touch()
    assert location.cause(path) is None
    monkeypatch.setattr(os, "open", fails)
    assert location.cause(path) == errno.EIO


@pytest.mark.parametrize("code", [sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_READONLY])
@pytest.mark.parametrize(
    ("number", "kind", "text", "hint"),
    [
        (errno.ENOSPC, StoreFullError, "the disk is full", "free space there"),
        (errno.EDQUOT, StoreFullError, "the quota is used up", "free space there"),
        (errno.EROFS, StoreReadOnlyError, "the file system is read-only", "mount it writable"),
    ],
)
def test_what_sqlite_does_not_tell_is_tried(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    number: int,
    kind: type[StoreError],
    text: str,
    hint: str,
) -> None:
    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    error = sqlite3.OperationalError("as SQLite says")
    error.sqlite_errorcode = code
    with pytest.raises(kind, match=rf"{text} \(as SQLite says\)") as caught, Translated(tmp_path / "metadata.db"):
        raise error
    assert hint in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_read_is_damage_on_a_full_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "refusal", lambda _: errno.ENOSPC)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
    with pytest.raises(StoreCorruptError), Translated(tmp_path / "metadata.db"):
        raise error


def test_a_second_opening_without_space_drops_no_lock_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with contextlib.closing(SqliteMetadataStore(path)) as metadata:
        metadata.images.find()
        before = locks_on(tmp_path)
        DatabaseAccess(path).do_without_space()
        assert locks_on(tmp_path) == before
        assert "metadata.db-shm" in before


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_who_looks_at_anothers_store_without_space_leaves_it_its_owners(tmp_path: Path) -> None:
    """Else he could open it no more."""
    path = tmp_path / "metadata.db"
    SqliteMetadataStore(path).close()
    os.chown(path, 12345, 23456)
    DatabaseAccess(path).do_without_space()
    for end in ("-wal", "-shm"):
        status = os.stat(f"{path}{end}")
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (12345, 23456, path.stat().st_mode & 0o777)


def test_a_path_that_is_too_long_for_sqlite_is_named_so(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["x" * 100] * 5)
    folder.mkdir(parents=True)
    with pytest.raises(StoreError, match="longer than the 500 bytes") as caught:
        SqliteMetadataStore(folder / "metadata.db")
    assert caught.value.hint == ""
