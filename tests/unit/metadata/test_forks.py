"""A child that is forked at a bad moment, and never touches the store, must not keep the locks of its parent.

flock belongs to the open file, which a fork shares: closing the descriptor of the parent lets go of nothing. And a
child that opens the store itself must have locks of its own, and wait for nobody who is not there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import imagestore
from imagestore.errors import StoreError
from imagestore.metadata import journal as journal_module
from imagestore.metadata.fairness import Turns
from imagestore.metadata.journal import RecordJournal
from imagestore.metadata.sqlite import SqliteMetadataStore


class Child:
    """A fork that sleeps."""

    def __init__(self) -> None:
        self.number = 0

    def fork(self) -> None:
        self.number = os.fork()
        if not self.number:
            time.sleep(30)
            os._exit(0)


@pytest.fixture
def child() -> Iterator[Child]:
    forked = Child()
    yield forked
    if forked.number:
        os.kill(forked.number, signal.SIGKILL)
        os.waitpid(forked.number, 0)


def test_a_child_forked_while_its_parent_waits_does_not_go_on_waiting(tmp_path: Path, child: Child) -> None:
    turns = Turns(tmp_path / "waiting")
    with turns.waiting_process():
        child.fork()
    assert not turns.is_wanted()


def test_a_child_forked_in_an_append_does_not_stop_the_journal_from_being_shortened(
    tmp_path: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = RecordJournal(tmp_path / "records.jsonl")
    monkeypatch.setattr(journal_module, "reach", lambda name: child.fork() if name == "journal-append" else None)
    journal.release(1, "lease")
    monkeypatch.undo()
    with journal.prepared(1, (), (), ()) as prepared:
        assert prepared is not None
        assert journal.exchange(prepared, journal.size())


def test_a_child_forked_in_an_exchange_does_not_hold_up_who_appends(
    tmp_path: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = RecordJournal(tmp_path / "records.jsonl")
    journal.release(1, "lease")
    other = RecordJournal(tmp_path / "records.jsonl")
    appending = threading.Thread(target=lambda: other.release(2, "lease"), daemon=True)

    def reach(name: str) -> None:
        if name == "journal-rename":
            appending.start()  # opens the old file, and waits for its lock
            time.sleep(0.3)
            child.fork()

    with journal.prepared(1, (), (), ()) as prepared:
        assert prepared is not None
        monkeypatch.setattr(journal_module, "reach", reach)
        with contextlib.suppress(OSError):
            journal.exchange(prepared, journal.size())
    appending.join(3)
    assert not appending.is_alive()


def test_a_child_forked_while_a_journal_is_prepared_does_not_lock_the_new_one(
    tmp_path: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = RecordJournal(tmp_path / "records.jsonl")
    journal.release(1, "lease")
    monkeypatch.setattr(journal_module, "reach", lambda name: child.fork() if name == "journal-sync" else None)
    with journal.prepared(1, (), (), ()) as prepared:
        assert prepared is not None
        assert journal.exchange(prepared, journal.size())
    monkeypatch.undo()
    appending = threading.Thread(target=lambda: journal.release(2, "lease"), daemon=True)
    appending.start()
    appending.join(3)
    assert not appending.is_alive()


def in_child(work: Callable[[], bool]) -> Callable[[], bool]:
    """Fork, do something in the child, and say later whether it returned true within some seconds."""
    number = os.fork()
    if not number:
        signal.alarm(20)
        with contextlib.suppress(BaseException):
            os._exit(0 if work() else 1)
        os._exit(2)
    return lambda: os.waitpid(number, 0)[1] == 0


def leases(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return [name for (name,) in database.execute("SELECT id FROM lease ORDER BY id")]


def test_what_a_child_commits_after_its_parent_closed_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteMetadataStore(path)
    has_opened, has_closed = os.pipe(), os.pipe()

    def work() -> bool:
        own = SqliteMetadataStore(path)
        os.write(has_opened[1], b"x")
        os.read(has_closed[0], 1)
        own.create_lease("a child's", lifetime_seconds=60)
        return True  # and dies with the store open

    has_worked = in_child(work)
    os.read(has_opened[0], 1)
    store.close()
    os.write(has_closed[1], b"x")
    assert has_worked()
    assert leases(path) == ["a child's"]


def test_a_parent_goes_on_after_a_fork(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    with store.exclusive():
        store.create_lease("a", lifetime_seconds=60)
        assert in_child(lambda: True)()
        store.create_lease("b", lifetime_seconds=60)
    assert in_child(lambda: True)()
    store.create_lease("c", lifetime_seconds=60)
    assert leases(tmp_path / "metadata.db") == ["a", "b", "c"]
    store.close()


def test_a_child_of_a_busy_parent_closes_without_waiting_for_threads_that_it_does_not_have(tmp_path: Path) -> None:
    with imagestore.open(tmp_path / "store") as store, working_thread(store.metadata):

        def work() -> bool:
            with pytest.raises(StoreError, match="before the process forked"):
                store.pull("registry.example/a:1")
            store.close()
            return True

        assert in_child(work)()


def test_a_child_does_not_open_a_database_while_its_parent_worked_with_one(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteMetadataStore(path)

    def work() -> bool:
        with pytest.raises(StoreError, match="was forked while another thread worked with a store"):
            SqliteMetadataStore(path)
        return True

    with working_thread(store):
        has_worked = in_child(work)
    assert has_worked()
    store.close()


def test_a_child_that_was_forked_inside_a_transaction_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteMetadataStore(path)

    def work() -> bool:
        with pytest.raises(StoreError, match="was forked while"):
            SqliteMetadataStore(path)
        return True

    with store.exclusive():
        assert in_child(work)()
    store.close()


def test_a_fork_next_to_threads_that_open_stores_leaves_a_child_that_opens_one_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteMetadataStore(path)
    has_ended = threading.Event()

    def open_and_close(name: str) -> None:
        while not has_ended.is_set():
            SqliteMetadataStore(tmp_path / name).close()

    threads = [threading.Thread(target=open_and_close, args=(f"{number}.db",), daemon=True) for number in range(2)]
    for each in threads:
        each.start()

    def work() -> bool:
        try:
            SqliteMetadataStore(path).close()
        except StoreError as error:
            return "was forked while" in str(error)
        return True

    try:
        assert all(in_child(work)() for _ in range(40))
    finally:
        has_ended.set()
        for each in threads:
            each.join()
    store.close()


COMMITS = """
import os, signal, sys
from pathlib import Path
from imagestore.metadata.sqlite import SqliteMetadataStore
store = SqliteMetadataStore(Path(sys.argv[1]))
store.create_lease(sys.argv[2], lifetime_seconds=60)
if sys.argv[3:]:
    os.kill(os.getpid(), signal.SIGKILL)
store.close()
"""


def commit_in_another_process(path: Path, name: str, *, is_killed: bool = False) -> None:
    subprocess.run([sys.executable, "-c", COMMITS, path, name, *["killed"] * is_killed], check=not is_killed)


@pytest.mark.parametrize("generations", [1, 2])
def test_what_a_child_and_others_commit_in_turn_is_not_lost(tmp_path: Path, generations: int) -> None:
    """With locks of its own the child counts, for those who open the database and for those who close it."""
    path = tmp_path / "metadata.db"
    store = SqliteMetadataStore(path)
    has_opened, has_closed = os.pipe(), os.pipe()

    def work(generations: int = generations) -> bool:
        own = SqliteMetadataStore(path)
        if generations > 1:
            return in_child(lambda: work(generations - 1))()
        own.create_lease("1", lifetime_seconds=60)
        os.write(has_opened[1], b"x")
        os.read(has_closed[0], 1)
        own.create_lease("3", lifetime_seconds=60)
        for _ in range(20):
            assert [each.id for each in own.leases()] == ["1", "2", "3"]
            SqliteMetadataStore(path).close()
        commit_in_another_process(path, "4")
        own.create_lease("5", lifetime_seconds=60)
        return True

    has_worked = in_child(work)
    os.read(has_opened[0], 1)
    store.close()
    commit_in_another_process(path, "2")
    os.write(has_closed[1], b"x")
    assert has_worked()
    assert leases(path) == ["1", "2", "3", "4", "5"]
    with contextlib.closing(SqliteMetadataStore(path)) as again:
        assert again.damage() == ()


def test_a_database_that_all_others_have_closed_since_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = SqliteMetadataStore(path)
    has_closed = os.pipe()

    def work() -> bool:
        os.read(has_closed[0], 1)
        for _ in range(2):
            with pytest.raises(StoreError, match="all others have closed it since"):
                SqliteMetadataStore(path)
        SqliteMetadataStore(tmp_path / "other.db").close()
        return True

    has_worked = in_child(work)
    store.close()
    commit_in_another_process(path, "another's")
    os.write(has_closed[1], b"x")
    assert has_worked()
    assert leases(path) == ["another's"]


ENDS = """
import gc, os, sys
from pathlib import Path
from imagestore.metadata.sqlite import SqliteMetadataStore
store, ended = SqliteMetadataStore(Path(sys.argv[1])), os.pipe()
child = os.fork()
if child:
    os.close(ended[0])
    store.close()
    print(flush=True)
    sys.stdin.readline()
    os.close(ended[1])
    sys.exit(os.waitpid(child, 0)[1])
os.close(ended[1])
os.read(ended[0], 1)
del store
gc.collect()
"""


def test_a_child_that_ends_closes_nothing_of_its_parents(tmp_path: Path) -> None:
    """Else it could take itself for the last one, and delete the log of a process that was killed."""
    path = tmp_path / "metadata.db"
    command = [sys.executable, "-c", ENDS, os.fspath(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        commit_in_another_process(path, "of one that was killed", is_killed=True)
        parent.communicate(b"\n", timeout=20)
    assert parent.returncode == 0
    assert leases(path) == ["of one that was killed"]


@contextlib.contextmanager
def working_thread(store: SqliteMetadataStore) -> Iterator[None]:
    """A thread that holds the store's connection while the block runs."""
    begun, ended = threading.Event(), threading.Event()

    def run() -> None:
        with store.exclusive():
            begun.set()
            ended.wait(60)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    begun.wait(5)
    try:
        yield
    finally:
        ended.set()
        thread.join()
