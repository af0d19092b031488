"""The space kept back is given up by whatever removes, and by nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from imagestore import Digest
from imagestore.errors import StoreBusyError, StoreFullError
from imagestore.metadata.sqlite.database import Database
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.util.disk_reserve import Ballast
from tests.unit.metadata.keeping import without_log

ONE = Digest.of(b"one")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteMetadataStore]:
    """One whose disk became full."""
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        store.leases.create("lease", lifetime_seconds=60)
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=9, f_bavail=0, f_frsize=4096))
        yield store


def test_a_disk_that_counts_no_blocks_is_not_a_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ramfs; what is kept back there isn't given up and made again with each removal."""
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        store.leases.create("lease", lifetime_seconds=60)
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=4096))
        store.leases.delete("lease")
    assert (tmp_path / "ballast").exists()


@pytest.mark.parametrize(
    "remove",
    [
        lambda store: store.leases.delete("lease"),
        lambda store: store.leases.remove_content("lease", [ONE]),
        lambda store: store.images.remove([("registry.example/one:1", "kata")]),
        lambda store: store.images.drop([("registry.example/one:1", "kata")]),
        lambda store: store.named_images.remove("moby", "one"),
        lambda store: store.namespaces.forget_record("moby", ONE),
        lambda store: store.expire(),
    ],
)
def test_a_removal_gives_it_up(
    store: SqliteMetadataStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    remove: Callable[[SqliteMetadataStore], object],
) -> None:
    store.leases.add_content("lease", [ONE])
    assert (tmp_path / "ballast").exists()
    remove(store)
    assert not (tmp_path / "ballast").exists()
    # While there is hardly more than what was given up, nobody takes it from the removal.
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=999, f_bavail=130, f_frsize=4096))
    store.tidy()
    assert not (tmp_path / "ballast").exists()
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=999, f_bavail=256, f_frsize=4096))
    store.tidy()
    assert (tmp_path / "ballast").exists()


def test_work_that_ends_takes_its_lease_away_without_it(store: SqliteMetadataStore, tmp_path: Path) -> None:
    """As a pull does that is refused for want of space: what it would have brought isn't there to be removed."""
    assert store.leases.delete("lease", is_of_work=True)
    assert (tmp_path / "ballast").exists()


REMOVALS = [
    lambda store: store.leases.delete("lease"),
    lambda store: store.images.drop([("registry.example/one:1", "kata")]) is not None,
    lambda store: store.expire(),
]


@pytest.mark.parametrize("remove", REMOVALS)
def test_a_removal_that_meets_a_quota_gives_it_up_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: Callable[[SqliteMetadataStore], object]
) -> None:
    """statvfs(2) knows of no quota, so it is seen only then; by who has had the database open before, as a server."""
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        store.leases.create("lease", lifetime_seconds=-1)
        begin = store.database._queue.begin

        def meets_quota(db: sqlite3.Connection) -> None:
            if (tmp_path / "ballast").exists():
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            begin(db)

        monkeypatch.setattr(store.database._queue, "begin", meets_quota)
        with pytest.raises(StoreFullError):
            store.leases.create("another", lifetime_seconds=60)
        assert (tmp_path / "ballast").exists()
        with pytest.raises(StoreFullError):
            remove(store)
        assert remove(store)


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database with a lease, whose log finds no space."""
    path = tmp_path / "metadata.db"
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        store.leases.create("lease", lifetime_seconds=60)
    prepare = Database._prepare

    def prepared(database: Database, on_making: Callable[[], None] | None) -> None:
        if (tmp_path / "ballast").exists():
            raise StoreFullError("full", hint="run 'imagestore gc'")
        prepare(database, on_making)

    monkeypatch.setattr(Database, "_prepare", prepared)
    return path


def test_a_quota_is_met_before_sqlite_writes_through_its_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it would end the process. A removal inside another transaction gives the space up too."""
    database = tmp_path / "metadata.db"
    with contextlib.closing(SqliteMetadataStore(database, file_system=lambda _: "btrfs")) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", Mock(side_effect=OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))))
            with pytest.raises(StoreFullError, match=f"{tmp_path}/metadata.db"):
                store.leases.create("lease", lifetime_seconds=60)
            assert (tmp_path / "ballast").exists()
            with pytest.raises(StoreFullError), store.exclusive():
                store.leases.delete("lease")
            assert not (tmp_path / "ballast").exists()
        assert list(store.leases.find()) == []
        store.leases.create("lease", lifetime_seconds=60)


def test_who_only_reads_leaves_it_and_reads(full: Path) -> None:
    with contextlib.closing(SqliteMetadataStore(full, is_freeing=False)) as store:
        assert [each.id for each in store.leases.find()] == ["lease"]
        assert store.images.find() == []
        assert store.graph.edges_as_written() == {}
        assert store.generation() is not None
        for write in (lambda: store.leases.delete("lease"), store.expire, lambda: store.images.drop([("a", "b")])):
            with pytest.raises(StoreFullError, match="disk is full") as caught:
                write()
            assert "imagestore gc" in caught.value.hint
    assert full.with_name("ballast").exists()
    with contextlib.closing(SqliteMetadataStore(full)) as store:
        assert not full.with_name("ballast").exists()
        assert store.leases.delete("lease")


def test_who_only_reads_beside_one_who_writes_sees_what_he_writes(full: Path) -> None:
    code = f"import imagestore; imagestore.open({str(full.parent)!r}).metadata.leases.delete('lease')"
    with contextlib.closing(SqliteMetadataStore(full, is_freeing=False)) as reading:
        subprocess.run([sys.executable, "-c", code], check=True)
        assert list(reading.leases.find()) == []


def test_where_nothing_is_kept_back_any_more_no_hint_leads_in_circles(
    full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(database: Database, on_making: Callable[[], None] | None) -> None:
        raise StoreFullError("full", hint="run 'imagestore gc'")

    monkeypatch.setattr(Database, "_prepare", no_space)
    with pytest.raises(StoreFullError) as caught:
        SqliteMetadataStore(full)
    assert caught.value.hint == "free space on this disk by other means first"


def test_who_removes_where_nothing_is_kept_back_any_more_is_not_led_in_circles(
    store: SqliteMetadataStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when others fill the disk with what the last removal gave up."""

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "ballast").unlink()
    monkeypatch.setattr("imagestore.metadata.sqlite.database.WriteQueue.begin", no_space)
    with pytest.raises(StoreFullError, match="No space left") as caught:
        store.leases.delete("lease")
    assert caught.value.hint == "free space on this disk by other means first"


def test_a_database_that_is_not_there_can_not_be_read_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(database: Database, on_making: Callable[[], None] | None) -> None:
        raise StoreFullError("full")

    monkeypatch.setattr(Database, "_prepare", no_space)
    with pytest.raises(StoreFullError, match="full"):
        SqliteMetadataStore(tmp_path / "metadata.db", is_freeing=False)


@pytest.fixture(params=[errno.ENOSPC, errno.EDQUOT])
def no_inode(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database with a lease, on a disk that takes no further file; as xfs that is full, and others by a quota."""
    path, system_open, release = tmp_path / "metadata.db", os.open, Ballast.release
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        store.leases.create("lease", lifetime_seconds=60)
    without_log(path)

    def takes_none(name: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(request.param, os.strerror(request.param))
        return system_open(name, flags, mode)

    def has_room(ballast: Ballast) -> bool:
        monkeypatch.setattr(os, "open", system_open)
        Path(f"{path}-wal").unlink()
        return release(ballast)

    monkeypatch.setattr(os, "open", takes_none)
    monkeypatch.setattr(Ballast, "release", has_room)
    return path


def test_who_removes_gives_up_what_the_log_needs_to_be_made(no_inode: Path) -> None:
    with contextlib.closing(SqliteMetadataStore(no_inode)) as store:
        assert not list(no_inode.parent.glob("ballast*"))
        assert store.leases.delete("lease")
        store.tidy()
        assert sorted(each.name for each in no_inode.parent.glob("ballast*")) == ["ballast", "ballast.inode"]


def test_who_only_reads_does_without_a_log(no_inode: Path) -> None:
    with contextlib.closing(SqliteMetadataStore(no_inode, is_freeing=False)) as store:
        assert [each.id for each in store.leases.find()] == ["lease"]
        assert store.images.find() == []
        assert store.graph.edges_as_written() == {}
        assert store.generation() is not None
        with pytest.raises(StoreFullError, match="disk is full, or the quota used up") as caught:
            store.leases.delete("lease")
    assert "imagestore gc" in caught.value.hint
    assert no_inode.with_name("ballast").exists()


@pytest.mark.parametrize("is_over", [False, True])
def test_who_reads_without_a_log_hears_of_whoever_writes_then(no_inode: Path, is_over: bool) -> None:
    """Without SQLite's locks he may have read half of it."""
    with contextlib.closing(SqliteMetadataStore(no_inode, is_freeing=False)) as reading:
        assert [each.id for each in reading.leases.find()] == ["lease"]
        with contextlib.ExitStack() as stack:
            writing = stack.enter_context(contextlib.closing(SqliteMetadataStore(no_inode)))
            writing.leases.delete("lease")
            if is_over:
                stack.close()
            assert Path(f"{no_inode}-wal").exists() != is_over
            assert reading.generation() is None
            for read in (reading.images.find, reading.graph.edges_as_written, lambda: list(reading.leases.find())):
                with pytest.raises(StoreBusyError, match="another process has written") as caught:
                    read()
                assert "open the store again" in caught.value.hint


def test_a_log_with_changes_that_finds_no_index_is_not_left_out(no_inode: Path) -> None:
    Path(f"{no_inode}-wal").unlink()
    Path(f"{no_inode}-wal").write_bytes(b"changes")
    Path(f"{no_inode}-shm").symlink_to("nowhere/else")
    with pytest.raises(StoreFullError):
        SqliteMetadataStore(no_inode, is_freeing=False)
