"""Folders that were put away are emptied: by whom, with how many threads, and what is left when that fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from imagestore.content import emptying
from imagestore.content.local import LocalContentStore
from imagestore.content.waits import Waits
from imagestore.errors import StoreError
from tests.unit.content.many_blobs import COUNT, is_freed_by_a_collection, left_over
from tests.unit.content.test_deleting import never_waiting
from tests.unit.content.test_local import put


def test_where_no_descriptor_is_left_that_is_told_and_all_goes_later(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: str, flags: int) -> int:
        if path.endswith("sha256"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(path, flags)

    with store.putting_away() as away:
        assert away.prepare(texts)
        assert away.take()
        with monkeypatch.context() as broken:
            broken.setattr(os, "open", refuse)
            with pytest.raises(StoreError, match="sha256: can't delete from: Too many open files"):
                away.empty()
    assert is_freed_by_a_collection(store)


def test_what_can_not_be_deleted_is_named_and_the_rest_goes(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    unlink, bad = os.unlink, {texts[3], texts[COUNT - 1]}

    def refuse(name: str | Path, *, dir_fd: int | None = None) -> None:
        if f"sha256:{Path(name).name}" in bad:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(name, dir_fd=dir_fd)

    with monkeypatch.context() as broken, store.putting_away() as away:
        assert away.prepare(texts)
        assert away.take()
        broken.setattr(os, "unlink", refuse)
        emptied = away.empty()
    assert emptied.failures.keys() == bad
    assert emptied.sizes.keys() == set(texts) - bad
    assert all("can't delete: Operation not permitted" in text for text in emptied.failures.values())
    assert is_freed_by_a_collection(store)


def test_an_interrupt_leaves_no_thread_that_still_deletes(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the folder that it deletes in will be another's."""
    monkeypatch.setattr(Waits, "is_long", True)
    unlink, waiter, others = os.unlink, threading.current_thread(), threading.Semaphore(0)
    calls: list[str] = []

    def interrupted(name: str, *, dir_fd: int) -> None:
        if threading.current_thread() is waiter:
            assert others.acquire(timeout=10)
            raise KeyboardInterrupt
        others.release()
        time.sleep(0.01)
        calls.append(name)
        unlink(name, dir_fd=dir_fd)

    with store.putting_away() as away:
        assert away.prepare(texts)
        assert away.take()
        with monkeypatch.context() as broken:
            broken.setattr(os, "unlink", interrupted)
            with pytest.raises(KeyboardInterrupt):
                away.empty()
            ended = len(calls)
            time.sleep(0.05)
            assert 0 < len(calls) == ended < COUNT // 2
            assert not any(thread.name == "emptying" for thread in threading.enumerate())
    assert is_freed_by_a_collection(store)


@pytest.mark.parametrize("possible", [0, 3])
def test_with_few_threads_or_none_all_goes_too(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch, possible: int
) -> None:
    monkeypatch.setattr(Waits, "is_long", True)
    start, started = threading.Thread.start, list[threading.Thread]()

    def refuse(thread: threading.Thread) -> None:
        if len(started) == possible:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with store.putting_away() as away:
        assert away.prepare(texts)
        assert away.take()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert away.empty().sizes.keys() == set(texts)
    assert len(started) == possible


def test_where_nothing_waits_there_are_no_threads(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    never_waiting(monkeypatch)
    monkeypatch.setattr(emptying.Emptied, "_side_by_side", None)
    with store.putting_away() as away:
        assert away.prepare(texts)
        assert away.take()
        assert away.empty().sizes.keys() == set(texts)


REMOVE = """
import sys
from pathlib import Path
from imagestore.content.local import LocalContentStore
root = Path(sys.argv[1])
store = LocalContentStore(root / "content", root / "locks")
with store.putting_away() as away:
    assert away.prepare(list(store.names())) and away.take()
    away.empty()
"""


@pytest.mark.parametrize(
    ("failpoint", "here", "put_away"),
    [
        ("away-exchange:1", COUNT, 0),
        ("away-sync:1", 0, COUNT),
        ("away-unlink:1", 0, COUNT),
        ("away-unlink:151", 0, COUNT - 150),
    ],
)
def test_what_a_killed_process_had_put_away_goes_however_young(
    store: LocalContentStore, texts: list[str], failpoint: str, here: int, put_away: int
) -> None:
    environment = {**os.environ, "IMAGESTORE_FAILPOINT": failpoint}
    command = [sys.executable, "-c", REMOVE, str(store.root.parent)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert len(list(store.names())) == here
    now = time.time()
    (left,) = store.stale_ingests(now - 1000, beyond=now + 1000)
    assert left.offset == 5 * put_away
    assert store.abort_stale(left)
    assert left_over(store) == []
    assert store.exists(put(store, b"hello"))


def test_what_somebody_is_emptying_is_left_to_him(store: LocalContentStore, texts: list[str]) -> None:
    with store.putting_away() as away:
        assert away.prepare(texts)
        assert away.take()
        (found,) = store.stale_ingests(1.0)
        assert not store.abort_stale(found)
        assert len(away.empty().sizes) == COUNT
