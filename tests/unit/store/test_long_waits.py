"""Waits for locks that other processes hold are told after a while, with who holds them."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagestore import CancelToken
from imagestore.errors import OperationCancelledError, StoreBusyError
from imagestore.events import Event, Noticed
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.util import executors, long_waits
from imagestore.util.file_locks import FileLock, SharedLock, byte_lock_holder, file_lock_holder
from tests.support.node import PYTHON, node
from tests.support.patience import until
from tests.support.stopped import stopped

WRITES = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("has the lock", flush=True)
"""
HAS_THE_FILE = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("has the lock", flush=True)
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_waits, "LONG_WAIT_SECONDS", 0.05)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings so far."""
    return lambda: [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]


def held(what: Path, process: subprocess.Popen[bytes]) -> str:
    name = Path(f"/proc/{process.pid}/comm").read_text().strip()
    return f"{what}: waiting for a lock that process {process.pid} ({name}, stopped) holds"


@contextlib.contextmanager
def during(work: Callable[[], object]) -> Iterator[None]:
    """Run work in another thread until the end of the block; it must not fail."""
    with ThreadPoolExecutor(1) as threads:
        outcome = threads.submit(work)
        yield
        outcome.result()


def test_a_pull_says_which_process_keeps_it_from_writing(tmp_path: Path, said: Callable[[], list[str]]) -> None:
    events: list[Event] = []
    with node(tmp_path) as here, stopped(WRITES, tmp_path / "metadata.db") as process:
        line = held(tmp_path / "metadata.db", process)
        with during(lambda: here.store.pull(PYTHON, observer=events.append)):
            until(lambda: Noticed(line) in events, "the pull says what it waits for")
            process.kill()
        assert line in said()
        assert [event for event in events if isinstance(event, Noticed) and "waiting" in event.message] == [
            Noticed(line)
        ]


def test_other_threads_that_wait_for_the_one_that_writes_say_it_too(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        store.leases.create("l", lifetime_seconds=60)
        with stopped(WRITES, tmp_path / "metadata.db") as process:
            line = held(tmp_path / "metadata.db", process)
            with during(lambda: store.leases.delete("l")):
                # First, since a reader that comes before the writer needn't wait.
                until(lambda: said() == [line], "the writer says what it waits for")
                with during(lambda: store.leases.find()):
                    until(lambda: said() == [line, line], "the reader says it too")
                    process.kill()


def test_who_waited_in_vain_is_told_who_holds_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.metadata.sqlite.fairness.BUSY_SECONDS", 0.2)
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        store.leases.find()
        with stopped(WRITES, tmp_path / "metadata.db") as process:
            with pytest.raises(StoreBusyError) as caught:
                store.leases.create("l", lifetime_seconds=60)
            assert caught.value.hint.startswith(f"process {process.pid} (")
            assert caught.value.hint.endswith(", stopped) holds the database; try again")


@pytest.mark.parametrize(
    "take", [lambda path: FileLock(path).acquire(CancelToken(60)), lambda p: SharedLock(p).acquire()]
)
def test_who_waits_for_a_locked_file_says_whose_it_is(
    tmp_path: Path, said: Callable[[], list[str]], take: Callable[[Path], None]
) -> None:
    path = tmp_path / "lock"
    with stopped(HAS_THE_FILE, path) as process:
        line = held(path, process)
        with during(lambda: take(path)):
            until(lambda: line in said(), "it says what it waits for")
            process.kill()


def test_a_wait_that_was_told_otherwise_is_not_told_again(tmp_path: Path, said: Callable[[], list[str]]) -> None:
    path = tmp_path / "lock"
    with stopped(HAS_THE_FILE, path):
        with pytest.raises(OperationCancelledError):
            FileLock(path).acquire(CancelToken(0.3), is_told=True)
        assert said() == []


def test_operations_hear_of_their_own_waits_once_and_of_no_others(said: Callable[[], list[str]]) -> None:
    heard: list[str] = []
    with long_waits.told_to(heard.append), ThreadPoolExecutor(1) as threads:
        executors.begin(threads, lambda: long_waits.report("a database", "process 1")).result()
        threads.submit(long_waits.report, "another one", "process 2").result()
        long_waits.report("a database", "process 3")
    long_waits.report("a database", "process 4")
    line = "{}: waiting for a lock that process {} holds"
    assert heard == [line.format("a database", 1)]
    assert said() == [line.format("a database", 1), line.format("another one", 2), line.format("a database", 4)]


def test_holders_that_cannot_be_known_are_other_processes(tmp_path: Path) -> None:
    assert file_lock_holder(tmp_path / "nowhere") == "another process"
    (tmp_path / "free").touch()
    assert byte_lock_holder(tmp_path / "free", 120) == "another process"


def test_a_lock_of_another_thread_is_not_called_another_processs(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as lock:
        assert lock.try_acquire()
        assert file_lock_holder(tmp_path / "lock") == f"another thread of this process ({os.getpid()})"
