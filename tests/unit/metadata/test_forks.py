"""A child that is forked at a bad moment, and never touches the store, must not keep the locks of its parent.

flock belongs to the open file, which a fork shares: closing the descriptor of the parent lets go of nothing. And a
child that has inherited connections of SQLite opens none itself, and never closes those.
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
from imagestore.metadata.sqlite import copies
from imagestore.metadata.sqlite.fairness import WriteQueue
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.metadata.sqlite.summaries import read_summaries
from tests.support.embedded import database_of


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
    turns = WriteQueue(tmp_path / "metadata.db")
    with turns.waiting_process():
        child.fork()
    assert not turns.is_wanted()


def test_a_child_forked_while_a_copy_is_made_does_not_keep_others_from_making_one(
    tmp_path: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        store.leases.create("lasting", lifetime_seconds=1e9)
        monkeypatch.setattr(copies, "reach", lambda name: child.fork() if name == "copy-rename" else None)
        store.keep_copy(at_once=True)
        monkeypatch.undo()
        store.leases.create("more", lifetime_seconds=1e9)
        store.keep_copy(at_once=True)
    assert len(list((tmp_path / "copies").glob("*.db"))) == 2


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


COMMITS_AFTER_A_FORK = """
import os, sys
from pathlib import Path
from imagestore.metadata.sqlite.store import SqliteMetadataStore
path, has_opened, has_closed = Path(sys.argv[1]), os.pipe(), os.pipe()
SqliteMetadataStore(path).close()
child = os.fork()
if child:
    os.read(has_opened[0], 1)
    store = SqliteMetadataStore(path)
    store.leases.create("a parent's", lifetime_seconds=60)
    store.close()
    os.write(has_closed[1], b"x")
    sys.exit(os.waitpid(child, 0)[1])
own = SqliteMetadataStore(path)
os.write(has_opened[1], b"x")
os.read(has_closed[0], 1)
own.leases.create("a child's", lifetime_seconds=60)
os._exit(0)  # dies with the store open
"""


def test_what_a_child_commits_after_its_parent_closed_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    subprocess.run([sys.executable, "-c", COMMITS_AFTER_A_FORK, path], check=True, timeout=60)
    assert leases(path) == ["a child's", "a parent's"]


@pytest.mark.parametrize("generations", [1, 2])
@pytest.mark.parametrize("name", ["metadata.db", "other.db"])
def test_a_child_opens_nothing_while_its_parent_has_a_store_open(tmp_path: Path, generations: int, name: str) -> None:
    """Its commits would be lost as soon as its parent closes: SQLite believes that the child has locks."""
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    SqliteMetadataStore(tmp_path / "other.db").close()
    store.leases.create("a parent's", lifetime_seconds=60)

    def work(generations: int = generations) -> bool:
        if generations > 1:
            return in_child(lambda: work(generations - 1))()
        with pytest.raises(StoreError, match="this process was forked while a store was open") as raised:
            SqliteMetadataStore(tmp_path / name)
        assert "after the fork" in raised.value.hint
        assert read_summaries(tmp_path / name) is None
        # A store is closed in vain; the process goes on having inherited it.
        store.close()
        with pytest.raises(StoreError, match="forked"):
            SqliteMetadataStore(tmp_path / name)
        return True

    assert in_child(work)()
    store.leases.create("behind the child's end", lifetime_seconds=60)
    store.close()
    assert leases(tmp_path / "metadata.db") == ["a parent's", "behind the child's end"]
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as again:
        assert again.damage() == ()


OPENS_IN_A_CHILD = """
import gc, os, sys
from pathlib import Path
from imagestore.metadata.sqlite.store import SqliteMetadataStore
path = Path(sys.argv[1])
store = SqliteMetadataStore(path)
{ends}
gc.collect()
child = os.fork()
if child:
    sys.exit(os.waitpid(child, 0)[1])
SqliteMetadataStore(path).leases.create("a child's", lifetime_seconds=60)
"""


@pytest.mark.parametrize("ends", ["store.close()", "del store"])
def test_a_child_opens_what_its_parent_has_closed_or_let_go_of_before(tmp_path: Path, ends: str) -> None:
    path = tmp_path / "metadata.db"
    subprocess.run([sys.executable, "-c", OPENS_IN_A_CHILD.format(ends=ends), path], check=True, timeout=60)
    assert leases(path) == ["a child's"]


def test_a_store_that_could_not_be_opened_keeps_no_child_from_opening_one(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"no database" * 1000)
    code = (
        "import os, sys; from pathlib import Path; from imagestore.errors import StoreError;"
        "from imagestore.metadata.sqlite.store import SqliteMetadataStore;"
        "\ntry: SqliteMetadataStore(Path(sys.argv[1]))"
        "\nexcept StoreError: pass"
        "\nchild = os.fork()"
        "\nif child: sys.exit(os.waitpid(child, 0)[1])"
        "\nSqliteMetadataStore(Path(sys.argv[2])).close()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "metadata.db"), str(tmp_path / "other.db")]
    subprocess.run(command, check=True, timeout=60)


def test_a_parent_goes_on_after_a_fork(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    with store.exclusive():
        store.leases.create("a", lifetime_seconds=60)
        assert in_child(lambda: True)()
        store.leases.create("b", lifetime_seconds=60)
    assert in_child(lambda: True)()
    store.leases.create("c", lifetime_seconds=60)
    assert leases(tmp_path / "metadata.db") == ["a", "b", "c"]
    store.close()


def test_a_child_of_a_busy_parent_closes_without_waiting_for_threads_that_it_does_not_have(tmp_path: Path) -> None:
    with imagestore.open(tmp_path / "store") as store, working_thread(database_of(store)):

        def work() -> bool:
            with pytest.raises(StoreError, match="before the process forked"):
                store.pull("registry.example/a:1")
            store.close()
            return True

        assert in_child(work)()


def test_a_fork_next_to_threads_that_open_stores_leaves_a_child_that_opens_one_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
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


COMMITS = """
import os, signal, sys
from pathlib import Path
from imagestore.metadata.sqlite.store import SqliteMetadataStore
store = SqliteMetadataStore(Path(sys.argv[1]))
store.leases.create(sys.argv[2], lifetime_seconds=60)
if sys.argv[3:]:
    os.kill(os.getpid(), signal.SIGKILL)
store.close()
"""


def commit_in_another_process(path: Path, name: str, *, is_killed: bool = False) -> None:
    subprocess.run([sys.executable, "-c", COMMITS, path, name, *["killed"] * is_killed], check=not is_killed)


ENDS = """
import gc, os, sys
from pathlib import Path
from imagestore.metadata.sqlite.store import SqliteMetadataStore
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
        parent.communicate(b"\n", timeout=60)
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
    begun.wait(60)
    try:
        yield
    finally:
        ended.set()
        thread.join()
