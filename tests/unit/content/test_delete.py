"""Blobs are deleted by several threads, and nothing is deleted after the caller may have let go of the lock."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from imagestore import Digest
from imagestore.content.api import Deleted
from imagestore.content.delete import LocalDeleter


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    (tmp_path / "sha256").mkdir()
    return tmp_path


def make(blobs: Path, count: int) -> list[str]:
    digests = [Digest.of(str(number).encode()) for number in range(count)]
    for digest in digests:
        (blobs / "sha256" / digest.encoded).write_bytes(b"12345")
    return [str(digest) for digest in digests]


def there(blobs: Path) -> set[str]:
    return {f"sha256:{name}" for name in os.listdir(blobs / "sha256")}


def delete_all(blobs: Path, texts: list[str]) -> Deleted:
    with LocalDeleter(blobs) as deleter:
        return deleter.delete_some(texts, lambda: False)


@pytest.mark.parametrize("count", [1, 40, 300])
def test_all_go_and_their_sizes_are_reported(blobs: Path, count: int) -> None:
    texts, missing = make(blobs, count), f"sha256:{'0' * 64}"
    deleted = delete_all(blobs, [*texts, missing])
    assert deleted.sizes == {**dict.fromkeys(texts, 5), missing: None}
    assert (deleted.left, there(blobs)) == ([], set())


@pytest.mark.parametrize("count", [5, 500])
def test_when_time_is_up_at_least_one_went_and_the_rest_is_named_in_order(blobs: Path, count: int) -> None:
    texts = make(blobs, count)
    with LocalDeleter(blobs) as deleter:
        deleted = deleter.delete_some(texts, lambda: True)
    assert deleted.sizes
    assert there(blobs) == set(deleted.left) == set(texts) - deleted.sizes.keys()
    assert deleted.left == [text for text in texts if text in set(deleted.left)]


@pytest.mark.parametrize("count", [3, 300])
def test_what_can_not_be_deleted_is_named_and_all_others_go(blobs: Path, count: int) -> None:
    texts = make(blobs, count)
    path = blobs / "sha256" / texts[0].removeprefix("sha256:")
    path.unlink()
    path.mkdir()
    deleted = delete_all(blobs, texts)
    assert deleted.sizes == dict.fromkeys(texts[1:], 5)
    assert deleted.failures.keys() == there(blobs) == {texts[0]}
    assert "can't delete" in deleted.failures[texts[0]]


@pytest.mark.parametrize("count", [3, 300])
def test_a_failure_of_another_kind_is_raised(blobs: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def unlink(name: str, *, dir_fd: int) -> None:
        raise MemoryError

    texts = make(blobs, count)
    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(MemoryError):
        delete_all(blobs, texts)


@pytest.mark.parametrize("count", [5, 500])
def test_time_is_up_also_while_nothing_can_be_deleted(blobs: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def unlink(name: str, *, dir_fd: int) -> None:
        raise PermissionError(errno.EPERM, "refused")

    texts = make(blobs, count)
    monkeypatch.setattr(os, "unlink", unlink)
    with LocalDeleter(blobs) as deleter:
        deleted = deleter.delete_some(texts, lambda: True)
    assert deleted.failures
    assert set(deleted.left) == set(texts) - deleted.failures.keys()


def test_without_threads_it_goes_on_alone(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    texts = make(blobs, 100)
    assert delete_all(blobs, texts).left == []
    assert there(blobs) == set()


def test_an_interrupt_leaves_no_thread_that_still_deletes(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink, begun, due = os.unlink, threading.Event(), threading.Event()

    def slowly(name: str, *, dir_fd: int) -> None:
        begun.set()
        time.sleep(0.05)
        unlink(name, dir_fd=dir_fd)

    def interrupt() -> None:
        begun.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        due.set()

    monkeypatch.setattr(os, "unlink", slowly)
    texts = make(blobs, 500)
    with LocalDeleter(blobs) as deleter:
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            deleter.delete_some(texts, due.is_set)
        before = there(blobs)
        time.sleep(0.1)
        assert there(blobs) == before
    interrupting.join()
    assert before, "it stopped soon"


@pytest.mark.parametrize("text", ["sha256:../../x", "sha256:" + "/" * 64, "blake3:" + "0" * 64, "", "sha256:"])
def test_only_names_of_blobs_are_deleted(blobs: Path, text: str) -> None:
    with LocalDeleter(blobs) as deleter:
        assert deleter.delete(text) is None


def test_a_large_file_gives_its_space_back_after_the_lock(blobs: Path) -> None:
    large, small = make(blobs, 2)
    os.truncate(blobs / "sha256" / large.removeprefix("sha256:"), 9 * 1024 * 1024)

    def still_open() -> list[str]:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if os.path.islink(link) and large[7:] in os.readlink(link)]

    with LocalDeleter(blobs) as deleter:
        assert [deleter.delete(each) for each in (large, small, large)] == [9 * 1024 * 1024, 5, None]
        assert there(blobs) == set()
        assert len(still_open()) == 1
        deleter.let_go()
        assert still_open() == []
