"""Copies of the database: when one is made, what it is, and what keeps it from being made."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagestore import Descriptor, Digest
from imagestore.errors import StoreCorruptError
from imagestore.metadata.records import NamedImage
from imagestore.metadata.sqlite import copies
from imagestore.metadata.sqlite.copies import AGE_SECONDS, DatabaseCopies, DatabaseCopy
from imagestore.metadata.sqlite.last_change import LastChangeNote
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.oci.media_types import OCI_MANIFEST
from imagestore.util import files
from tests.support.syncs import noted_syncs
from tests.unit.metadata.keeping import Clock, record


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """At the time of the files, which nobody sets."""
    (tmp_path / "now").touch()
    made = Clock()
    made.now = os.stat(tmp_path / "now").st_mtime
    return made


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SqliteMetadataStore]:
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db", clock=clock)) as opened:
        opened.images.put(record(), {})
        yield opened


def found(tmp_path: Path) -> list[DatabaseCopy]:
    return DatabaseCopies(tmp_path / "metadata.db", lambda: 0.0).found()


def change(store: SqliteMetadataStore) -> None:
    store.images.put(record(), {})


def references(copy: DatabaseCopy) -> list[str]:
    with contextlib.closing(sqlite3.connect(copy.path)) as db:
        return [text for (text,) in db.execute("SELECT reference FROM image ORDER BY reference")]


def test_the_first_change_is_copied_and_the_next_after_an_hour(
    store: SqliteMetadataStore, tmp_path: Path, clock: Clock
) -> None:
    store.keep_copy()
    assert [copy.number for copy in found(tmp_path)] == [1]
    change(store)
    store.keep_copy()
    assert [copy.number for copy in found(tmp_path)] == [1]
    clock.now += AGE_SECONDS + 60
    store.keep_copy()
    assert [copy.number for copy in found(tmp_path)] == [2, 1]


def test_a_clock_that_was_set_back_stops_no_copies(store: SqliteMetadataStore, tmp_path: Path, clock: Clock) -> None:
    store.keep_copy()
    change(store)
    clock.now -= AGE_SECONDS + 60
    store.keep_copy()
    assert len(found(tmp_path)) == 2


def test_what_is_as_it_was_is_not_copied_again(store: SqliteMetadataStore, tmp_path: Path, clock: Clock) -> None:
    store.keep_copy(at_once=True)
    before = os.stat(found(tmp_path)[0].path)
    clock.now += 2 * AGE_SECONDS
    store.keep_copy(at_once=True)
    assert os.stat(found(tmp_path)[0].path) == before


def test_two_are_kept_and_a_change_that_has_no_number_replaces_the_newest(
    store: SqliteMetadataStore, tmp_path: Path
) -> None:
    for _ in range(4):
        change(store)
        store.keep_copy(at_once=True)
    assert [copy.number for copy in found(tmp_path)] == [5, 4]
    store.leases.create("more", lifetime_seconds=60)
    store.keep_copy(at_once=True)
    newest, other = found(tmp_path)
    assert (newest.number, other.number) == (5, 4)
    with contextlib.closing(sqlite3.connect(newest.path)) as db:
        assert db.execute("SELECT id FROM lease").fetchall() == [("more",)]


def test_a_copy_is_one_durable_file_of_this_user(
    store: SqliteMetadataStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = noted_syncs(monkeypatch)
    store.keep_copy(at_once=True)
    (copy,) = found(tmp_path)
    assert os.listdir(copy.path.parent) == [copy.path.name]
    assert stat.S_IMODE(copy.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.path.parent.stat().st_mode) == 0o700
    assert os.fspath(tmp_path / "copies") in synced
    assert references(copy) == ["registry.example/a:1"]


def test_each_copy_notes_the_last_change(store: SqliteMetadataStore, tmp_path: Path) -> None:
    store.keep_copy(at_once=True)
    noted = LastChangeNote(tmp_path / "metadata.db").read()
    assert noted is not None
    assert (noted.store, noted.number) == (store.store_id, 1)


def test_a_note_never_goes_back(tmp_path: Path, store: SqliteMetadataStore) -> None:
    """Another process may have noted a later change."""
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as other:
        change(other)
        with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as later:
            change(later)
    noted = LastChangeNote(tmp_path / "metadata.db").read()
    assert noted is not None
    assert noted.number == store.generation() == 3


def test_only_one_process_makes_one(store: SqliteMetadataStore, tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    descriptor = os.open(tmp_path / "copies", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    store.keep_copy(at_once=True)
    assert found(tmp_path) == []
    os.close(descriptor)
    store.keep_copy(at_once=True)
    assert len(found(tmp_path)) == 1


def test_none_is_made_where_there_is_little_room(
    store: SqliteMetadataStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    size = sum(each.stat().st_size for each in (tmp_path / "metadata.db", tmp_path / "metadata.db-wal"))
    room = SimpleNamespace(f_blocks=10**6, f_bavail=2 * size - 1, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    store.keep_copy(at_once=True)
    assert found(tmp_path) == []
    assert "the disk has little space left" in caplog.text
    room.f_bavail += 1
    store.keep_copy(at_once=True)
    assert len(found(tmp_path)) == 1


@pytest.mark.parametrize("place", ["copy-write", "copy-rename"])
def test_a_copy_that_cannot_be_made_ends_nobodys_work(
    store: SqliteMetadataStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str,
) -> None:
    def fail(name: str) -> None:
        if name == place:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(copies, "reach", fail)
        store.keep_copy(at_once=True)
    assert "no copy of the records could be made" in caplog.text
    assert found(tmp_path) == []
    store.keep_copy(at_once=True)
    assert os.listdir(tmp_path / "copies") == ["metadata-1.db"], "what was left is gone"


def test_a_damaged_database_does_not_replace_its_copies(
    store: SqliteMetadataStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.keep_copy(at_once=True)
    change(store)
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "metadata.db")) as db:
        query = "SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size WHERE name = 'named_image'"
        ((page, size),) = db.execute(query).fetchall()
    with open(tmp_path / "metadata.db", "r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"7" * size)
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as damaged:
        damaged.keep_copy(at_once=True)
    assert [copy.number for copy in found(tmp_path)] == [1]
    assert "no copy of the records could be made" in caplog.text
    assert not (tmp_path / "copies" / ".new.db").exists()


def test_a_copy_sees_one_moment_and_keeps_nobody_waiting(
    store: SqliteMetadataStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(name: str) -> None:
        if name == "copy-write":
            store.images.put(record("registry.example/later:1"), {})

    monkeypatch.setattr(copies, "reach", meanwhile)
    store.keep_copy(at_once=True)
    monkeypatch.undo()
    (copy,) = found(tmp_path)
    assert (copy.number, references(copy)) == (1, ["registry.example/a:1"])
    store.keep_copy(at_once=True)
    assert [each.number for each in found(tmp_path)] == [2, 1], "the change in between isn't in the first"


def test_a_store_that_is_only_read_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteMetadataStore(tmp_path / "metadata.db").close()
    monkeypatch.setattr("imagestore.metadata.sqlite.location.is_read_only", lambda _: True)
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        store.keep_copy(at_once=True)
    assert not (tmp_path / "copies").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(30, "Read-only file system")])
def test_a_note_that_cannot_be_written_ends_nobodys_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(files, "replace", fail)
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        change(store)
    assert not (tmp_path / "last-change.json").exists()


def test_strange_files_among_the_copies_are_passed_over(store: SqliteMetadataStore, tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    for name in ("metadata-x.db", "metadata-1.db.old", f"metadata-{'9' * 30}.db", "note"):
        (tmp_path / "copies" / name).touch()
    assert found(tmp_path) == []
    store.keep_copy(at_once=True)
    assert [copy.number for copy in found(tmp_path)] == [1]


def test_copies_of_other_kinds_stay(store: SqliteMetadataStore, tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    for name in ("metadata-0.schema-6.db", "metadata-0.incomplete.db"):
        (tmp_path / "copies" / name).touch()
    for _ in range(3):
        change(store)
        store.keep_copy(at_once=True)
    assert {copy.kind for copy in found(tmp_path)} == {"", "schema-6", "incomplete"}
    made = DatabaseCopies(tmp_path / "metadata.db", lambda: 0.0)
    kept = made.keep_incomplete(made.found()[0])
    assert kept.name == "metadata-4.incomplete.db"
    assert [copy.number for copy in made.found() if copy.kind == "incomplete"] == [4]


def test_a_database_that_lacks_a_named_image_is_noticed(store: SqliteMetadataStore, tmp_path: Path) -> None:
    """A collection from it would delete that image's content."""
    path, older = tmp_path / "metadata.db", tmp_path / "older.db"
    with contextlib.closing(sqlite3.connect(path)) as db, contextlib.closing(sqlite3.connect(older)) as other:
        db.backup(other)
    digest = Digest.of(b"content")
    store.named_images.put(NamedImage("moby", "x", Descriptor(OCI_MANIFEST, digest, 7), created_at=1.0, updated_at=1.0))
    store.close()
    for end in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
    older.rename(path)
    with contextlib.closing(SqliteMetadataStore(path)) as opened:
        with pytest.raises(StoreCorruptError, match="an older database was put in its place"):
            opened.graph.garbage([str(digest)])
        with pytest.raises(StoreCorruptError, match="an older database was put in its place"):
            opened.namespaces.create("other", {})
