"""Blobs are deleted side by side, and nothing is deleted behind the back of whoever holds the lock."""

from __future__ import annotations

import errno
import itertools
import os
import queue
import threading
import time
from pathlib import Path

import pytest

from imagestore.content import waits
from imagestore.content.crew import SharedDeletion
from imagestore.content.deleting import Deleting
from imagestore.content.deletion import Deletion
from imagestore.content.waits import Waits
from imagestore.digest import Digest


def never_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine does, the processor seems to be busy all the time."""
    monkeypatch.setattr(time, "thread_time", itertools.count(0.0, 1000.0).__next__)


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def is_slow(request: pytest.FixtureRequest) -> bool:
    """Whether the file system makes those wait who use it."""
    return bool(request.param)


@pytest.fixture
def blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool) -> Path:
    monkeypatch.setattr(Waits, "is_long", is_slow)
    if not is_slow:
        never_waiting(monkeypatch)
    (tmp_path / "sha256").mkdir()
    return tmp_path


def make(blobs: Path, count: int) -> list[str]:
    digests = [Digest.of(str(number).encode()) for number in range(count)]
    for digest in digests:
        (blobs / "sha256" / digest.encoded).write_bytes(b"12345")
    return [str(digest) for digest in digests]


def there(blobs: Path) -> set[str]:
    return {f"sha256:{name}" for name in os.listdir(blobs / "sha256")}


@pytest.mark.parametrize("count", [1, 40, 300])
def test_all_go_and_their_sizes_are_told(blobs: Path, count: int) -> None:
    texts = make(blobs, count)
    with Deleting(blobs) as files:
        files.expect(count)
        with files.settled():
            deletion = files.begin([*texts, f"sha256:{'0' * 64}"])
            assert files.end(deletion, lambda: False) == []
    assert deletion.sizes == {**dict.fromkeys(texts, 5), f"sha256:{'0' * 64}": None}
    assert there(blobs) == set()


def impatiently_deleted(blobs: Path, texts: list[str]) -> tuple[Deletion, list[str]]:
    """What was deleted, and what is left, where there is time for next to nothing."""
    with Deleting(blobs) as files:
        files.expect(len(texts))
        with files.settled():
            deletion = files.begin(texts)
            return deletion, files.end(deletion, lambda: True)


@pytest.mark.parametrize("count", [5, 500])
def test_when_time_is_up_at_least_one_went_and_the_rest_is_named(blobs: Path, count: int) -> None:
    texts = make(blobs, count)
    deletion, left = impatiently_deleted(blobs, texts)
    assert deletion.sizes
    assert there(blobs) == set(left) == set(texts) - deletion.sizes.keys()
    assert left == [text for text in texts if text in set(left)], "in their order"


def test_who_waits_deletes_too_and_looks_at_the_time(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink, waiter = os.unlink, threading.current_thread()
    begun: list[SharedDeletion] = []

    def held_up(name: str, *, dir_fd: int) -> None:
        until = time.monotonic() + (0 if threading.current_thread() is waiter else 5)
        while time.monotonic() < until and not begun[0]._is_closed:
            time.sleep(0.001)
        unlink(name, dir_fd=dir_fd)

    def begin(deletion: SharedDeletion) -> None:
        begun.append(deletion)
        tell(deletion)

    def is_due() -> bool:
        looks.append(len(there(blobs)))
        return len(looks) >= 3

    texts, looks = make(blobs, 500), list[int]()
    monkeypatch.setattr(os, "unlink", held_up)
    with Deleting(blobs) as files:
        files.expect(len(texts))
        assert files._crew is not None
        tell = files._crew.begin
        monkeypatch.setattr(files._crew, "begin", begin)
        with files.settled():
            left = files.end(files.begin(texts), is_due)
    assert looks[:3] == [499, 498, 497]
    assert len(left) >= 500 - 3 - 8, "every other thread ended what it had begun"


def test_a_block_that_fails_leaves_no_thread_that_still_deletes(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = make(blobs, 500)
    begun = threading.Event()
    unlink = os.unlink

    def slowly(name: str, *, dir_fd: int) -> None:
        begun.set()
        time.sleep(0.005)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", slowly)

    def begin_and_fail(files: Deleting) -> None:
        with files.settled():
            files.begin(texts)
            begun.wait()
            raise RuntimeError("stop")

    with Deleting(blobs) as files:
        files.expect(len(texts))
        with pytest.raises(RuntimeError, match="stop"):
            begin_and_fail(files)
        before = there(blobs)
        time.sleep(0.03)
        assert there(blobs) == before
    assert before, "it was told to hurry"


@pytest.mark.parametrize("count", [3, 300])
def test_what_can_not_be_deleted_is_named_and_all_others_go(blobs: Path, count: int) -> None:
    texts = make(blobs, count)
    path = blobs / "sha256" / texts[0].removeprefix("sha256:")
    path.unlink()
    path.mkdir()
    with Deleting(blobs) as files:
        files.expect(count)
        with files.settled():
            deletion = files.begin(texts)
            assert files.end(deletion, lambda: False) == []
    assert deletion.sizes == dict.fromkeys(texts[1:], 5)
    assert deletion.failures.keys() == there(blobs) == {texts[0]}
    assert "can't delete" in deletion.failures[texts[0]]


@pytest.mark.parametrize("count", [3, 300])
def test_a_failure_of_another_kind_is_an_error_of_who_waits(
    blobs: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    def unlink(name: str, *, dir_fd: int) -> None:
        raise MemoryError

    def delete_all(files: Deleting) -> None:
        with files.settled():
            files.end(files.begin(texts), lambda: False)

    texts = make(blobs, count)
    monkeypatch.setattr(os, "unlink", unlink)
    with Deleting(blobs) as files:
        files.expect(count)
        with pytest.raises(MemoryError):
            delete_all(files)


@pytest.mark.parametrize("count", [5, 500])
def test_time_is_up_also_while_nothing_can_be_deleted(blobs: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def unlink(name: str, *, dir_fd: int) -> None:
        raise PermissionError(errno.EPERM, "refused")

    texts = make(blobs, count)
    monkeypatch.setattr(os, "unlink", unlink)
    deletion, left = impatiently_deleted(blobs, texts)
    assert deletion.failures
    assert set(left) == set(texts) - deletion.failures.keys()


def test_without_threads_it_goes_on_alone(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    texts = make(blobs, 100)
    with Deleting(blobs) as files:
        files.expect(100)
        with files.settled():
            assert files.end(files.begin(texts), lambda: False) == []
    assert there(blobs) == set()


@pytest.mark.parametrize("is_slow", [True])
@pytest.mark.parametrize("is_running", [True, False])
def test_an_interrupt_while_threads_start_leaves_none_and_does_not_hang(
    blobs: Path, monkeypatch: pytest.MonkeyPatch, *, is_running: bool
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        is_last = len(started) == 3
        if is_running or not is_last:
            start(thread)
            started.append(thread)
        if is_last:
            raise KeyboardInterrupt

    with Deleting(blobs) as files, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.expect(100)
    assert len(started) == 3 + is_running
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize("is_slow", [True])
def test_an_interrupt_before_all_threads_were_told_does_not_hang(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(queue.SimpleQueue[object]):
        told = 0

        def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
            if item is not None:
                self.told += 1
                if self.told == 3:
                    raise KeyboardInterrupt
            super().put(item, block, timeout)

    def begin(files: Deleting) -> None:
        with files.settled():
            files.begin(texts)

    monkeypatch.setattr(queue, "SimpleQueue", Interrupted)
    texts = make(blobs, 500)
    with Deleting(blobs) as files:
        files.expect(len(texts))
        with pytest.raises(KeyboardInterrupt):
            begin(files)
        before = there(blobs)
        time.sleep(0.01)
        assert there(blobs) == before


@pytest.mark.parametrize("is_slow", [False])
def test_threads_come_where_deletions_wait(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a disk; in memory they would only be in each other's way."""

    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "deleting"]

    def delete_some(files: Deleting) -> None:
        files.expect(len(texts))
        with files.settled():
            for _ in range(3):
                files.end(files.begin([texts.pop() for _ in range(50)]), lambda: False)
        files.expect(len(texts))

    texts = make(blobs, 400)
    monkeypatch.setattr(waits, "_LEAST_SECONDS", 0.0)
    with Deleting(blobs) as files:
        delete_some(files)
        assert len(names()) == 1
        monkeypatch.setattr(time, "thread_time", lambda: 0.0)
        delete_some(files)
        assert len(names()) == 8
    assert names() == []


def test_a_thread_that_fails_before_it_deletes_is_heard_of(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> float:
        raise OSError(errno.ENOSYS, "refused")

    def delete_all(files: Deleting) -> None:
        with files.settled():
            files.end(files.begin(texts), lambda: False)

    texts = make(blobs, 100)
    monkeypatch.setattr(time, "thread_time", refuse)
    with Deleting(blobs) as files:
        files.expect(len(texts))
        with pytest.raises(OSError, match="refused"):
            delete_all(files)


def test_a_thread_that_comes_after_the_end_deletes_nothing(blobs: Path) -> None:
    texts = make(blobs, 3)
    deletion = SharedDeletion(texts, Waits())
    with Deleting(blobs) as files:
        deletion.settle()
        deletion.work(files.delete)
        assert deletion.wait(files.delete, lambda: False) == texts
    assert there(blobs) == set(texts)


@pytest.mark.parametrize("text", ["sha256:../../x", "sha256:" + "/" * 64, "blake3:" + "0" * 64, "", "sha256:"])
def test_only_names_of_blobs_are_deleted(blobs: Path, text: str) -> None:
    with Deleting(blobs) as files:
        assert files.delete(text) is None
