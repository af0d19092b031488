"""Work on content that is interrupted, cancelled or refused by the system holds no lock and no file afterwards."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagestore import CancelToken, Digest
from imagestore.content.api import SmallBlob
from imagestore.content.ingest import LocalIngestWriter
from imagestore.content.local import LocalContentStore
from imagestore.errors import IntegrityError, OperationCancelledError, StoreError
from imagestore.util.file_locks import FileLock

DATA = b"hello"
#: What file systems say of damaged metadata; macOS doesn't have it.
DAMAGED = [errno.EUCLEAN] if hasattr(errno, "EUCLEAN") else []


@pytest.fixture
def store(tmp_path: Path) -> LocalContentStore:
    return LocalContentStore(tmp_path / "content", tmp_path / "locks")


def opened(store: LocalContentStore, ref: str = "r", cancel: CancelToken | None = None) -> LocalIngestWriter:
    return store.writer(ref, expected=Digest.of(DATA), total=len(DATA), cancel=cancel or CancelToken())


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_lock_that_the_system_refuses_holds_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    before = open_files()
    with monkeypatch.context() as broken:
        broken.setattr(fcntl, "flock", refuse)
        with pytest.raises(StoreError, match="No locks available"):
            FileLock(tmp_path / "lock").try_acquire()
    assert open_files() == before
    with FileLock(tmp_path / "lock") as lock:
        assert lock.try_acquire()


@pytest.mark.parametrize("end", [LocalIngestWriter.close, LocalIngestWriter.abort])
def test_an_interrupt_while_an_ingest_ends_lets_go_of_its_lock(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch, end: Callable[[LocalIngestWriter], None]
) -> None:
    """Others of this process would wait for it for ever."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = open_files()
    writer = opened(store)
    writer.write(DATA)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", interrupt)
        broken.setattr(os, "unlink", interrupt)
        with pytest.raises(KeyboardInterrupt):
            end(writer)
    # Interrupted twice, at its lock's file too, which stays in nobody's way.
    assert open_files() == before
    opened(store).close()


def test_reading_what_an_ingest_has_can_be_cancelled(store: LocalContentStore) -> None:
    with opened(store) as writer:
        writer.write(DATA)
    token = CancelToken()
    token.cancel("enough")
    before = open_files()
    with pytest.raises(OperationCancelledError, match="enough"):
        opened(store, cancel=token)
    assert open_files() == before
    with opened(store) as writer:
        assert writer.offset == len(DATA)


def test_a_name_with_line_breaks_of_every_kind_is_resumed(store: LocalContentStore) -> None:
    with opened(store, "a\r\nb\rc\n") as writer:
        writer.write(DATA)
    assert [status.ref for status in store.statuses()] == ["a\r\nb\rc\n"]
    with opened(store, "a\r\nb\rc\n") as writer:
        assert writer.offset == len(DATA)


def test_what_is_no_lock_file_ends_no_collection(store: LocalContentStore) -> None:
    locks = store.root.parent / "locks"
    (locks / "folder").mkdir()
    (locks / "dead").touch()
    store.clear_locks()
    assert [path.name for path in locks.iterdir()] == ["folder"]


def test_a_process_without_threads_stores_batches_itself(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    blobs = [bytes([number]) for number in range(9)]
    with store.small_blobs(CancelToken()) as small_blobs:
        small_blobs.put([SmallBlob(Digest.of(each), 1, functools.partial(bytes, each), "a blob") for each in blobs])
    assert {info.digest for info in store.walk()} == set(map(Digest.of, blobs))


@pytest.mark.parametrize("number", [errno.EIO, *DAMAGED, errno.EBADMSG])
def test_what_a_broken_file_system_cannot_open_is_damage(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with opened(store) as writer:
        writer.write(DATA)
        digest = writer.commit()

    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, "open", fail)
        with pytest.raises(IntegrityError, match="the disk can't read it"):
            store.open(digest)
    with store.open(digest) as blob:
        assert blob.read() == DATA


def test_a_file_that_cannot_even_be_looked_at_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose inode is damaged: its name is there, and every look at it fails."""
    store = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    with opened(store) as writer:
        writer.write(DATA)
        digest = writer.commit()
    with store.writer("other", expected=Digest.of(b"other"), total=5, cancel=CancelToken()) as writer:
        writer.write(b"other")
        other = writer.commit()
    lstat, scandir = os.lstat, os.scandir

    def fail(path: str) -> os.stat_result:
        if os.fspath(path).endswith(digest.encoded):
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        return lstat(path)

    @contextlib.contextmanager
    def listed(path: str) -> Iterator[list[SimpleNamespace]]:
        with scandir(path) as entries:
            yield [SimpleNamespace(name=each.name, stat=lambda each=each, **_: fail(each.path)) for each in entries]

    monkeypatch.setattr(os, "lstat", fail)
    monkeypatch.setattr(os, "scandir", listed)
    assert {info.digest: info.size for info in store.walk()} == {digest: 0, other: 5}
    with pytest.raises(IntegrityError, match="the disk can't read it"):
        store.info(digest)


@pytest.mark.parametrize("number", [*DAMAGED, errno.EBADMSG, errno.ENODATA])
def test_a_partial_ingest_that_a_broken_file_system_cannot_read_is_begun_again(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As one whose sectors can't be read."""
    with opened(store) as writer:
        writer.write(DATA[:2])

    def fail(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, "pread", fail)
        with opened(store) as writer:
            assert writer.offset == 0
