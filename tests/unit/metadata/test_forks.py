"""A child that is forked at a bad moment, and never touches the store, must not keep the locks of its parent.

flock belongs to the open file, which a fork shares: closing the descriptor of the parent lets go of nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.metadata import journal as journal_module
from imagestore.metadata.journal import RecordJournal
from imagestore.metadata.turns import Turns


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
