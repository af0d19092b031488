"""A lock is one only as long as its file has its name: who comes next would lock another file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from imagestore.util.file_locks import FileLock, is_taken


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_lock_whose_file_lost_its_name_before_it_was_taken_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    """The holder before us removes the file between our open and our lock; a third one may make it anew."""
    path, flock = tmp_path / "lock", fcntl.flock

    def holder_leaves_first(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        if is_made_again:
            path.touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", holder_leaves_first)
    open_before = len(os.listdir("/proc/self/fd"))
    lock = FileLock(path)
    assert lock.try_acquire()
    assert not FileLock(path).try_acquire()
    lock.release()
    assert not path.exists()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_look_at_a_lock_makes_nothing_and_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_taken(path)
    assert list(tmp_path.iterdir()) == []
    with FileLock(path) as lock:
        assert lock.try_acquire()
        assert is_taken(path)
    path.touch()
    assert not is_taken(path)
    with FileLock(path) as lock:
        assert lock.try_acquire()
