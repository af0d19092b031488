"""Indexes that were found whole are believed as long as only stores write to the database."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from imagestore.errors import StoreCorruptError
from imagestore.metadata.sqlite import integrity
from imagestore.metadata.sqlite.store import SqliteMetadataStore

DYING = """
import os, signal, sys
from pathlib import Path
from imagestore.metadata.sqlite.store import SqliteMetadataStore
store = SqliteMetadataStore(Path(sys.argv[1]))
store.leases.create("left", lifetime_seconds=60)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that was made, changed and closed."""
    path = tmp_path / "metadata.db"
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        store.leases.create("first", lifetime_seconds=60)
    return path


def is_believed(store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a removal checks no index."""
    asked: list[str] = []
    damaged_tables = integrity.damaged_tables

    def noted(db: sqlite3.Connection, tables: Iterable[str]) -> list[str]:
        asked.append("checked")
        return damaged_tables(db, tables)

    with monkeypatch.context() as patched:
        patched.setattr(integrity, "damaged_tables", noted)
        store.graph.refuse_damaged_indexes()
    return not asked


def test_a_new_store_is_believed_and_one_that_was_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        with contextlib.closing(SqliteMetadataStore(path)) as store:
            assert is_believed(store, monkeypatch)
            store.leases.create(f"lease {number}", lifetime_seconds=60)


def test_what_else_writes_to_it_costs_one_check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM lease")
    for is_known in (False, True):
        with contextlib.closing(SqliteMetadataStore(path)) as store:
            assert is_believed(store, monkeypatch) is is_known
            assert is_believed(store, monkeypatch)


def test_a_crash_costs_one_check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    died = subprocess.run([sys.executable, "-c", DYING, str(path)], check=False)
    assert died.returncode == -signal.SIGKILL
    for is_known in (False, True):
        with contextlib.closing(SqliteMetadataStore(path)) as store:
            assert is_believed(store, monkeypatch) is is_known


def test_who_has_it_open_vouches_for_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server does for the commands beside it, also once it is alone again, and when another one dies."""
    with contextlib.closing(SqliteMetadataStore(path)) as server:
        server.leases.create("server's", lifetime_seconds=60)
        with contextlib.closing(SqliteMetadataStore(path)) as command:
            command.leases.create("command's", lifetime_seconds=60)
            assert is_believed(command, monkeypatch)
        subprocess.run([sys.executable, "-c", DYING, str(path)], check=False)
        with contextlib.closing(SqliteMetadataStore(path)) as command:
            assert is_believed(command, monkeypatch)
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert is_believed(store, monkeypatch)


def test_a_check_counts_for_those_who_have_it_open_already(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.with_name("verified").unlink()
    with contextlib.closing(SqliteMetadataStore(path)) as server:
        with contextlib.closing(SqliteMetadataStore(path)) as command:
            assert not is_believed(command, monkeypatch)
        assert is_believed(server, monkeypatch)


def test_another_file_in_its_place_is_checked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert not is_believed(store, monkeypatch)


@pytest.mark.parametrize("is_as_long", [True, False])
def test_bytes_that_change_at_once_are_noticed(path: Path, monkeypatch: pytest.MonkeyPatch, is_as_long: bool) -> None:
    data = path.read_bytes()
    with open(path, "r+b") as file:
        file.write(data[:100])
        if not is_as_long:
            file.seek(0, os.SEEK_END)
            file.write(bytes(4096))
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert not is_believed(store, monkeypatch)


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"file": 1}', b"\xff" * 5000])
def test_a_note_that_says_nothing_counts_for_nothing(path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    path.with_name("verified").write_bytes(said)
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert not is_believed(store, monkeypatch)


def test_a_note_that_cannot_be_written_costs_checks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.with_name("verified").unlink()
    path.with_name("verified").mkdir()
    for _ in range(2):
        with contextlib.closing(SqliteMetadataStore(path)) as store:
            assert not is_believed(store, monkeypatch)


def test_damage_is_not_noted_as_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(path, (1, 1))
    monkeypatch.setattr(integrity, "damaged_tables", lambda *_: ["row 1 missing from index edge_by_child"])
    for _ in range(2):
        with contextlib.closing(SqliteMetadataStore(path)) as store:
            for _ in range(2):
                with pytest.raises(StoreCorruptError, match="nothing was removed"):
                    store.graph.refuse_damaged_indexes()
