"""Long work in batches starves nobody who waits to write, and never waits for ever itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from imagestore import Digest
from imagestore.errors import LeaseNotFoundError
from imagestore.metadata.sqlite import backup, database, integrity
from imagestore.metadata.sqlite.fairness import WriteQueue
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from tests.unit.metadata.keeping import record


def is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteMetadataStore]:
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        yield store


def lease_ids(store: SqliteMetadataStore) -> list[str]:
    return [lease.id for lease in store.leases.find()]


def test_another_process_that_waits_writes_before_the_next_batch(tmp_path: Path, store: SqliteMetadataStore) -> None:
    # Two connections are to SQLite and to flock what two processes are.
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as other:
        waiting = threading.Thread(target=lambda: other.leases.create("l", lifetime_seconds=100))
        with store.batch():
            waiting.start()
            while not is_locked(tmp_path / "waiting"):
                time.sleep(0.001)
            assert lease_ids(store) == []
        with store.batch():
            assert lease_ids(store) == ["l"]
        waiting.join()


def test_a_thread_that_waits_goes_first(tmp_path: Path) -> None:
    turns = WriteQueue(tmp_path / "metadata.db")
    is_waiting, went = threading.Event(), threading.Event()

    def wait() -> None:
        with turns.waiting_thread():
            is_waiting.set()
            time.sleep(0.02)
            went.set()

    thread = threading.Thread(target=wait)
    thread.start()
    is_waiting.wait()
    turns.give_way()
    assert went.is_set()
    thread.join()


def test_a_waiter_that_was_stopped_does_not_stop_the_others(tmp_path: Path) -> None:
    one, other = WriteQueue(tmp_path / "metadata.db"), WriteQueue(tmp_path / "metadata.db")
    with one.waiting_process():
        assert is_locked(tmp_path / "waiting")
        other.give_way()
    assert not is_locked(tmp_path / "waiting")


def test_giving_way_inside_a_transaction_waits_for_nobody(
    tmp_path: Path, store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(_seconds: float) -> None:
        raise AssertionError("who holds the lock can let nobody in")

    monkeypatch.setattr("imagestore.metadata.sqlite.fairness.time.sleep", wait)
    with WriteQueue(tmp_path / "metadata.db").waiting_process(), store.exclusive():
        store.give_way()


def test_a_batch_inside_a_transaction_is_a_part_of_it(store: SqliteMetadataStore) -> None:
    def fail_inside() -> None:
        with store.exclusive():
            with store.batch():
                store.leases.create("l", lifetime_seconds=100)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_inside()
    assert lease_ids(store) == []
    with store.batch():
        store.leases.create("l", lifetime_seconds=100)
    assert lease_ids(store) == ["l"]


def test_a_list_of_everything_waits_for_no_writer_and_stops_none(store: SqliteMetadataStore) -> None:
    """A thread inside a transaction has the process's connection; lists and marks have their own."""
    content = Digest.of(b"x")
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.extend([store.images.find(), store.graph.garbage([str(content)])]))
    with store.exclusive():
        store.leases.create("l", lifetime_seconds=100)
        store.leases.add_content("l", [content])
        reader.start()
        reader.join()
        assert found == [[], [str(content)]], "what isn't committed isn't seen"
        assert store.graph.garbage([str(content)]) == [], "but by whoever writes it"


@pytest.mark.parametrize("work", ["damage", "backup"])
def test_a_look_at_the_whole_file_keeps_no_thread_from_the_connection(
    store: SqliteMetadataStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """It takes seconds in a large store, and a server's calls need microseconds."""
    begun, ended = threading.Event(), threading.Event()

    def take_long(*_: object) -> tuple[str, ...]:
        begun.set()
        assert ended.wait(60)
        return ()

    monkeypatch.setattr(integrity, "damage", take_long)
    monkeypatch.setattr(backup, "copy_to", take_long)
    looks = {"damage": store.damage, "backup": lambda: store.backup(tmp_path / "copy.db")}
    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(looks[work])
        assert begun.wait(60)
        store.leases.create("l", lifetime_seconds=100)
        assert lease_ids(store) == ["l"]
        ended.set()
        looking.result(60)


def test_what_an_expired_lease_lists_goes_in_batches_and_the_lease_at_once(tmp_path: Path) -> None:
    now = [1000.0]
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db", clock=lambda: now[0])) as store:
        for lease_id, lifetime in (("old", 10), ("young", 100)):
            store.leases.create(lease_id, lifetime_seconds=lifetime)
            store.leases.add_content(lease_id, [Digest.of(f"{lease_id} {number}".encode()) for number in range(1100)])
        now[0] += 50
        assert store.expire() == 1
        assert lease_ids(store) == ["young"]
        assert len(store.leases.content("young")) == 1100
        with pytest.raises(LeaseNotFoundError):
            store.leases.renew("old", lifetime_seconds=9)


def test_the_owner_of_a_lease_that_is_being_deleted_finds_it_gone(store: SqliteMetadataStore) -> None:
    """A collection that died half way through deleting it leaves it ended, with a part of what it listed."""
    store.leases.create("l", lifetime_seconds=float("-inf"))
    with pytest.raises(LeaseNotFoundError):
        store.leases.renew("l", lifetime_seconds=9)
    with pytest.raises(LeaseNotFoundError):
        store.leases.add_content("l", [])
    assert lease_ids(store) == []
    store.leases.create("l", lifetime_seconds=9)
    assert lease_ids(store) == ["l"]


@pytest.mark.parametrize("reads", ["reading_apart", "snapshot"])
def test_reads_that_belong_together_see_one_state_whoever_writes_between_them(tmp_path: Path, reads: str) -> None:
    """A mark that saw two would take what moved from the one to the other for garbage."""
    path = tmp_path / "metadata.db"
    counts = []
    with (
        contextlib.closing(SqliteMetadataStore(path)) as store,
        contextlib.closing(SqliteMetadataStore(path)) as other,
    ):
        with getattr(store.database, reads)() as snapshot:
            for name in "abc":
                counts += snapshot.execute("SELECT count(*) FROM image").fetchone()
                other.images.put(record(f"registry.example/{name}:1"), {})
        with getattr(store.database, reads)() as snapshot:
            counts += snapshot.execute("SELECT count(*) FROM image").fetchone()
    assert counts == [counts[0]] * 3 + [3]
    assert counts[0] < 2


def log_number(path: Path) -> bytes:
    """What changes when the log begins anew (its header's first salt)."""
    return path.with_name(f"{path.name}-wal").read_bytes()[16:20]


def test_a_log_that_others_add_to_while_it_is_brought_home_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would grow as long as there are others, and each of their commits would have to bring it home."""
    path = tmp_path / "metadata.db"
    with contextlib.closing(SqliteMetadataStore(path)) as store, contextlib.closing(SqliteMetadataStore(path)) as other:
        interruptions = iter("ab")

        class Interrupted(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                found = super().execute(sql, *values)
                if "wal_checkpoint" in sql and (name := next(interruptions, None)):
                    other.leases.create(name, lifetime_seconds=100)
                return found

        connect = sqlite3.connect
        monkeypatch.setattr(database, "_LOG_CHANGES", 0)
        monkeypatch.setattr(sqlite3, "connect", lambda *values, **named: connect(*values, **named, factory=Interrupted))
        with store.batch():
            store.leases.create("l", lifetime_seconds=100)
        assert next(interruptions, None) is None, "somebody came in between twice"
        before = log_number(path)
        store.leases.create("next", lifetime_seconds=100)
        assert log_number(path) != before
