"""Folders of blobs that are put away as a whole: nothing that isn't meant goes with them, and nothing stays behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from imagestore.content import emptying, put_away
from imagestore.content.local import LocalContentStore
from imagestore.content.waits import Waits
from imagestore.digest import Digest
from imagestore.errors import StoreError
from tests.unit.content.test_deleting import never_waiting
from tests.unit.content.test_local import put

COUNT = 300


@pytest.fixture
def store(tmp_path: Path) -> LocalContentStore:
    return LocalContentStore(tmp_path / "content", tmp_path / "locks")


@pytest.fixture
def texts(store: LocalContentStore) -> list[str]:
    """Many blobs of five bytes."""
    digests = [Digest.of(str(number).encode()) for number in range(COUNT)]
    for digest in digests:
        (store.root / "blobs" / "sha256" / digest.encoded).write_bytes(b"12345")
    return [str(digest) for digest in digests]


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def is_slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the file system makes those wait who use it."""
    monkeypatch.setattr(Waits, "is_long", request.param)
    if not request.param:
        never_waiting(monkeypatch)
    return bool(request.param)


def refuse_exchange(monkeypatch: pytest.MonkeyPatch, *algorithms: str) -> None:
    """Folders of these are mount points, or on another disk than the ingests."""
    exchange = put_away._exchange()

    def checked(one: str, other: str) -> None:
        if Path(one).name in algorithms:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        exchange(one, other)

    monkeypatch.setattr(put_away, "_exchange", lambda: checked)


def left_over(store: LocalContentStore) -> list[str]:
    return [*os.listdir(store.root / "ingest"), *os.listdir(store.root.parent / "locks")]


def is_freed_by_a_collection(store: LocalContentStore) -> bool:
    """What was left, however young it is."""
    (left,) = store.stale_ingests(1.0)
    return store.abort_stale(left) and left_over(store) == []


def test_all_go_and_what_comes_next_finds_its_folder(
    store: LocalContentStore, texts: list[str], *, is_slow: bool
) -> None:
    other = put(store, b"hello", algorithm="sha512")
    os.chmod(store.root / "blobs" / "sha256", 0o2775)
    with store.putting_away() as away:
        assert away.prepare([*texts, str(other), str(Digest.of(b"not here"))])
        assert away.take()
        assert list(store.names()) == []
        emptied = away.empty()
    assert emptied.sizes == {**dict.fromkeys(texts, 5), str(other): 5}
    assert emptied.failures == {}
    assert left_over(store) == []
    assert stat.S_IMODE(os.stat(store.root / "blobs" / "sha256").st_mode) == 0o2775
    assert store.exists(put(store, b"hello"))


class Another:
    """What is known of a file, but for some of it."""

    def __init__(self, status: os.stat_result, **other: int) -> None:
        self._status = status
        self.__dict__.update(other)

    def __getattr__(self, name: str) -> object:
        return getattr(self._status, name)


def look_different(monkeypatch: pytest.MonkeyPatch, folder: Path, **other: int) -> None:
    real = os.lstat

    # Python 3.13's shutil asks by a folder's descriptor.
    def seen(path: str | Path, *, dir_fd: int | None = None) -> os.stat_result | Another:
        status = real(path, dir_fd=dir_fd)
        return Another(status, **other) if Path(path) == folder else status

    monkeypatch.setattr(os, "lstat", seen)


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_new_folder_belongs_to_whom_the_old_one_did(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch, *, is_ours: bool
) -> None:
    given: list[tuple[str, int, int]] = []
    if not is_ours:
        look_different(monkeypatch, store.root / "blobs" / "sha256", st_uid=12, st_gid=34)
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: given.append((Path(path).parent.parent.name, uid, gid)))
    with store.putting_away() as away:
        assert away.prepare(texts)
    assert given == ([] if is_ours else [("ingest", 12, 34)])


@pytest.mark.parametrize("other", [{"st_dev": 7}, {"st_ctime_ns": 1_700_000_000 * 10**9}])
def test_a_folder_of_another_file_system_or_with_coarse_times_stays(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch, other: dict[str, int]
) -> None:
    """As a subvolume is; and where times have whole seconds only, changes can't be told from them."""
    look_different(monkeypatch, store.root / "blobs" / "sha256", **other)
    with store.putting_away() as away:
        assert not away.prepare(texts)


def stranger(folder: Path, texts: Sequence[str]) -> None:
    (folder / "README").write_text("nobody's blob")


def another_blob(folder: Path, texts: Sequence[str]) -> None:
    (folder / Digest.of(b"another").encoded).write_bytes(b"another")


def folder_in_a_blobs_place(folder: Path, texts: Sequence[str]) -> None:
    path = folder / texts[0].partition(":")[2]
    path.unlink()
    path.mkdir()


def link_in_a_blobs_place(folder: Path, texts: Sequence[str]) -> None:
    path = folder / texts[0].partition(":")[2]
    path.unlink()
    path.symlink_to("elsewhere")


def folder_elsewhere(folder: Path, texts: Sequence[str]) -> None:
    folder.rename(folder.parent.parent.parent / "elsewhere")
    folder.symlink_to(folder.parent.parent.parent / "elsewhere")


@pytest.mark.parametrize(
    "change", [stranger, another_blob, folder_in_a_blobs_place, link_in_a_blobs_place, folder_elsewhere]
)
def test_what_is_not_wanted_keeps_its_folder(
    store: LocalContentStore, texts: list[str], change: Callable[[Path, Sequence[str]], None]
) -> None:
    folder = store.root / "blobs" / "sha256"
    change(folder, texts)
    before = sorted(os.listdir(folder))
    with store.putting_away() as away:
        assert not away.prepare(texts)
    assert sorted(os.listdir(folder)) == before
    assert left_over(store) == []


def test_where_no_folder_can_be_made_none_is_put_away(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir", full)
    with store.putting_away() as away:
        assert not away.prepare(texts)
    assert set(store.names()) == set(texts)
    assert left_over(store) == []


def test_a_folder_that_can_not_be_moved_stays_with_all_it_has(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_exchange(monkeypatch, "sha256")
    with store.putting_away() as away:
        assert away.prepare(texts)
        assert not away.take()
        assert away.empty().sizes == {}
    assert set(store.names()) == set(texts)
    assert left_over(store) == []


@pytest.mark.parametrize("missing", [AttributeError, ImportError])
def test_where_two_names_can_not_change_places_nothing_is_tried(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch, missing: type[Exception]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise missing

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with store.putting_away() as away:
        assert not away.prepare(texts)
    assert left_over(store) == []


def inodes(store: LocalContentStore) -> dict[str, int]:
    return {folder.name: folder.stat().st_ino for folder in (store.root / "blobs").iterdir()}


def test_where_one_of_several_folders_can_not_be_moved_all_stay(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durably: somebody may write to the one in whose place another was for a moment."""
    other = put(store, b"hello", algorithm="sha512")
    before = inodes(store)
    refuse_exchange(monkeypatch, "sha512")
    with store.putting_away() as away:
        assert away.prepare([*texts, str(other)])
        with monkeypatch.context() as noted:
            steps = steps_of(noted)
            assert not away.take()
        assert steps == ["blobs"]
        assert away.empty().sizes == {}
    assert set(store.names()) == {*texts, str(other)}
    assert inodes(store) == before
    assert left_over(store) == []


def steps_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are synced."""
    steps, fsync = list[str](), os.fsync

    def noted_fsync(descriptor: int) -> None:
        steps.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    return steps


def test_the_new_folder_is_durable_before_anybody_writes_to_it(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut brings the old one back, and takes the new one with what was synced into it."""
    exchange = put_away._exchange()

    def noted(one: str, other: str) -> None:
        steps.append("exchanged")
        exchange(one, other)

    with store.putting_away() as away:
        steps = steps_of(monkeypatch)
        monkeypatch.setattr(put_away, "_exchange", lambda: noted)
        assert away.prepare(texts)
        assert away.take()
    assert steps == ["sha256", "exchanged", "blobs"]


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()])
def test_what_is_not_durable_is_put_back(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(path: str) -> None:
        raise failure

    before = inodes(store)
    with store.putting_away() as away:
        assert away.prepare(texts)
        monkeypatch.setattr(put_away, "sync_directory", fail)
        with pytest.raises(KeyboardInterrupt) if isinstance(failure, KeyboardInterrupt) else contextlib.nullcontext():
            assert not away.take()
    assert set(store.names()) == set(texts)
    assert inodes(store) == before
    assert left_over(store) == []


def add_blob(folder: Path) -> None:
    (folder / Digest.of(b"another").encoded).write_bytes(b"another")


def add_stranger(folder: Path) -> None:
    (folder / "README").write_text("nobody's blob")


def add_folder(folder: Path) -> None:
    folder.with_name("sha512").mkdir()


def replace_folder(folder: Path) -> None:
    """As another process does that puts all away at the same time."""
    folder.rename(folder.parent / "old")
    folder.mkdir()


def remove_folder(folder: Path) -> None:
    folder.rename(folder.parent / "old")


@pytest.mark.parametrize("change", [add_blob, add_stranger, add_folder, replace_folder, remove_folder])
def test_a_folder_that_changed_since_it_was_listed_stays(
    store: LocalContentStore, texts: list[str], change: Callable[[Path], None]
) -> None:
    folder = store.root / "blobs" / "sha256"
    with store.putting_away() as away:
        assert away.prepare(texts)
        change(folder)
        before = sorted(folder.parent.rglob("*"))
        assert not away.take()
        assert away.empty().sizes == {}
        assert sorted(folder.parent.rglob("*")) == before


def test_a_folder_that_was_just_changed_is_listed_when_its_next_change_can_be_told(
    store: LocalContentStore, texts: list[str]
) -> None:
    folder = store.root / "blobs" / "sha256"
    os.utime(folder)
    with store.putting_away() as away:
        assert away.prepare(texts)
        assert time.time() - os.stat(folder).st_mtime >= 0.02


def test_where_the_clock_was_set_back_nothing_is_told_from_times(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 1000)
    with store.putting_away() as away:
        assert not away.prepare(texts)


def test_where_there_is_nothing_nothing_is_put_away(store: LocalContentStore) -> None:
    with store.putting_away() as away:
        assert not away.prepare([str(Digest.of(b"gone"))])


def test_what_is_noted_with_a_folder_is_noted_with_the_new_one(store: LocalContentStore, texts: list[str]) -> None:
    folder = store.root / "blobs" / "sha256"
    try:
        os.setxattr(folder, "user.note", b"x")
    except OSError:
        pytest.skip("this file system notes nothing with a folder")
    with store.putting_away() as away:
        assert away.prepare(texts)
        assert away.take()
    assert os.getxattr(folder, "user.note") == b"x"


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
