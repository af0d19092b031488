"""Folders of blobs that are put away as a whole: nothing that isn't meant goes with them, and nothing stays behind."""

from __future__ import annotations

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

from imagestore.content import emptying
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


def refusing_rename(refused: Callable[[Path], bool]) -> Callable[[Path | str, Path | str], None]:
    rename = os.rename

    def checked(old: Path | str, new: Path | str) -> None:
        if refused(Path(old)):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(old, new)

    return checked


def left_over(store: LocalContentStore) -> list[str]:
    return [*os.listdir(store.root / "ingest"), *os.listdir(store.root.parent / "locks")]


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


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_new_folder_belongs_to_whom_the_old_one_did(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch, *, is_ours: bool
) -> None:
    folder, real, given = store.root / "blobs" / "sha256", os.lstat, list[tuple[str, int, int]]()

    def another(path: str | Path) -> os.stat_result:
        fields = list(real(path))
        if path == folder and not is_ours:
            fields[stat.ST_UID], fields[stat.ST_GID] = 12, 34
        return os.stat_result(fields)

    monkeypatch.setattr(os, "lstat", another)
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: given.append((Path(path).parent.parent.name, uid, gid)))
    with store.putting_away() as away:
        assert away.prepare(texts)
    assert given == ([] if is_ours else [("ingest", 12, 34)])


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
    """A mount point, or the content on another disk than the ingests."""
    with store.putting_away() as away:
        assert away.prepare(texts)
        monkeypatch.setattr(os, "rename", refusing_rename(lambda old: old.name == "sha256"))
        assert not away.take()
        assert away.empty().sizes == {}
    assert set(store.names()) == set(texts)
    assert left_over(store) == []


def test_of_several_folders_those_go_that_can_be_moved(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = put(store, b"hello", algorithm="sha512")
    with store.putting_away() as away:
        assert away.prepare([*texts, str(other)])
        monkeypatch.setattr(os, "rename", refusing_rename(lambda old: old.name == "sha512"))
        assert not away.take()
        assert away.empty().sizes == dict.fromkeys(texts, 5)
    assert list(store.names()) == [str(other)]
    assert left_over(store) == []


def test_the_new_folder_is_durable_before_anybody_writes_to_it(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut brings the old one back, and takes the new one with what was synced into it."""
    steps, fsync, rename = list[str](), os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        steps.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def noted_rename(old: str | Path, new: str | Path) -> None:
        steps.append("renamed")
        rename(old, new)

    with store.putting_away() as away:
        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(os, "rename", noted_rename)
        assert away.prepare(texts)
        assert away.take()
    assert steps == ["1", "renamed", "renamed", "blobs"]


def test_a_disk_that_fails_is_told_and_the_folder_made_by_who_needs_it(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.putting_away() as away:
        assert away.prepare(texts)
        with monkeypatch.context() as broken:
            broken.setattr(os, "rename", refusing_rename(lambda old: old.parent.parent.name == "ingest"))
            with pytest.raises(StoreError, match="blobs/sha256: can't replace"):
                away.take()
        assert away.empty().sizes == dict.fromkeys(texts, 5)
    assert store.exists(put(store, b"hello"))
    assert left_over(store) == []


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
    assert left_over(store) == []


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
        ("away-rename:1", COUNT, 0),
        ("away-replace:1", 0, COUNT),
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
