"""Folders of blobs that are put away as a whole: nothing that isn't meant goes with them, and nothing stays behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from imagestore.content import put_away
from imagestore.content.local import LocalContentStore
from imagestore.digest import Digest
from tests.support.syncs import noted_syncs
from tests.unit.content.many_blobs import left_over
from tests.unit.content.test_local import put


def refuse_exchange(monkeypatch: pytest.MonkeyPatch, *algorithms: str) -> None:
    """Folders of these are mount points, or on another disk than the ingests."""
    exchange = put_away._exchange()

    def checked(one: str, other: str) -> None:
        if Path(one).name in algorithms:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        exchange(one, other)

    monkeypatch.setattr(put_away, "_exchange", lambda: checked)


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


def test_an_exchange_that_the_system_refuses_is_none(tmp_path: Path) -> None:
    """Else all that is known about the blobs would be dropped, and they would stay."""
    (tmp_path / "here").mkdir()
    exchange = put_away._exchange()
    with pytest.raises(FileNotFoundError):
        exchange(os.fspath(tmp_path / "here"), os.fspath(tmp_path / "gone"))


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
            synced = noted_syncs(noted)
            assert not away.take()
        assert synced == [os.fspath(store.root / "blobs")]
        assert away.empty().sizes == {}
    assert set(store.names()) == {*texts, str(other)}
    assert inodes(store) == before
    assert left_over(store) == []


def test_the_new_folder_is_durable_before_anybody_writes_to_it(
    store: LocalContentStore, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut brings the old one back, and takes the new one with what was synced into it."""
    exchange = put_away._exchange()

    def noted(one: str, other: str) -> None:
        steps.append("exchanged")
        exchange(one, other)

    with store.putting_away() as away:
        steps = noted_syncs(monkeypatch)
        monkeypatch.setattr(put_away, "_exchange", lambda: noted)
        assert away.prepare(texts)
        assert away.take()
    assert [Path(step).name for step in steps] == ["sha256", "exchanged", "blobs"]


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
