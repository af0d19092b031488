"""Many small blobs at once keep the promises of single ones."""

from __future__ import annotations

import errno
import itertools
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from imagestore.cancel import CancelToken
from imagestore.content import waits
from imagestore.content.batch import BATCH, SmallBlob
from imagestore.content.local import LocalContentStore
from imagestore.content.waits import Waits
from imagestore.digest import Digest
from imagestore.errors import (
    DigestMismatchError,
    ImageStoreError,
    OperationCancelledError,
    SizeMismatchError,
    StoreCorruptError,
    StoreError,
)
from tests.unit.content.many_blobs import left_over


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> LocalContentStore:
    """On a file system that makes those wait who use it, or doesn't."""
    monkeypatch.setattr(Waits, "is_long", bool(request.param))
    if not request.param:
        # Whatever the machine does, the processor seems to be busy all the time.
        monkeypatch.setattr(time, "thread_time", itertools.count(0.0, 1000.0).__next__)
    return LocalContentStore(tmp_path / "content", tmp_path / "locks")


def blob(data: bytes, *, algorithm: str = "sha256", size: int | None = None, comes: bytes | None = None) -> SmallBlob:
    digest = Digest.of(data, algorithm)
    raw = data if comes is None else comes
    return SmallBlob(digest, len(data) if size is None else size, lambda: raw, "the thing")


def test_blobs_are_whole_read_only_and_leave_nothing_else(store: LocalContentStore) -> None:
    data = [f"blob {number}".encode() for number in range(2 * BATCH + 3)] + [b""]
    other = blob(b"other", algorithm="sha512")
    with store.batches(CancelToken()) as batches:
        batches.put([*map(blob, data), other])
        assert store.read(other.digest, limit_bytes=5) == b"other"
    assert {store.read(info.digest, limit_bytes=99) for info in store.walk()} == {*data, b"other"}
    assert {store.path(info.digest).stat().st_mode & 0o777 for info in store.walk()} == {0o444}
    assert left_over(store) == []


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (blob(b"promised", comes=b"delivere"), DigestMismatchError),
        (blob(b"promised", comes=b"short"), SizeMismatchError),
        (blob(b"promised", size=9), SizeMismatchError),
    ],
)
def test_wrong_bytes_get_no_name(store: LocalContentStore, wrong: SmallBlob, kind: type[ImageStoreError]) -> None:
    with store.batches(CancelToken()) as batches, pytest.raises(kind, match="the thing"):
        batches.put([blob(b"right"), wrong])
    assert not store.exists(wrong.digest)
    assert left_over(store) == []


def test_a_blob_that_came_meanwhile_is_no_error(store: LocalContentStore) -> None:
    with store.batches(CancelToken()) as one, store.batches(CancelToken()) as two:
        one.put([blob(b"same")])
        two.put([blob(b"same")])
    assert store.read(Digest.of(b"same"), limit_bytes=9) == b"same"


def test_something_else_in_a_blobs_place_is_refused(store: LocalContentStore) -> None:
    thing = blob(b"x")
    (store.root / "blobs" / "sha256" / thing.digest.encoded).mkdir(parents=True)
    with store.batches(CancelToken()) as batches, pytest.raises(StoreCorruptError, match="no file"):
        batches.put([thing])
    assert left_over(store) == []


def test_a_batch_whose_sync_fails_names_nothing_and_keeps_nothing(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for single blobs: what a failed sync lost would read well until the machine restarts."""

    def lose(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with store.batches(CancelToken()) as batches, monkeypatch.context() as broken:
        broken.setattr(os, "fsync", lose)
        with pytest.raises(StoreError, match="Input/output error"):
            batches.put([blob(b"one"), blob(b"two")])
    assert list(store.walk()) == []
    assert left_over(store) == []


def test_a_cancelled_batch_writes_nothing_more(store: LocalContentStore) -> None:
    token = CancelToken()
    with store.batches(token) as batches:
        batches.put([blob(b"before")])
        token.cancel()
        with pytest.raises(OperationCancelledError):
            batches.put([blob(b"after")])
    assert [info.digest for info in store.walk()] == [Digest.of(b"before")]


def test_a_batch_under_way_is_never_stale_and_a_dead_ones_folder_is(store: LocalContentStore) -> None:
    with store.batches(CancelToken()) as batches:
        batches.put([blob(b"first")])
        (stale,) = store.stale_ingests(4e9)
        assert not store.abort_stale(stale)
    dead = store.root / "ingest" / ("0" * 64)
    dead.mkdir()
    (dead / Digest.of(b"x").encoded).write_bytes(b"x")
    (stale,) = store.stale_ingests(4e9)
    assert (stale.offset, store.abort_stale(stale)) == (1, True)
    assert left_over(store) == []


def test_a_large_file_gives_its_space_back_when_the_block_ends(store: LocalContentStore) -> None:
    large, small = Digest.of(b"large"), Digest.of(b"small")
    for digest, size in ((large, 9 * 1024 * 1024), (small, 5)):
        path = store.root / "blobs" / "sha256" / digest.encoded
        path.touch()
        os.truncate(path, size)

    def still_open() -> list[str]:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if os.path.islink(link) and large.encoded in os.readlink(link)]

    with store.deleting() as files:
        assert [files.delete(str(each)) for each in (large, small, large)] == [9 * 1024 * 1024, 5, None]
        assert list(store.walk()) == []
        assert len(still_open()) == 1
    assert still_open() == []


def test_what_can_not_be_a_blob_is_not_there_to_delete(store: LocalContentStore) -> None:
    with store.deleting() as files:
        assert files.delete(f"blake3:{'0' * 64}") is None


def writers(store: LocalContentStore, count: int) -> list[str]:
    """Which thread wrote each of some blobs."""
    names = []

    def noted(number: int) -> SmallBlob:
        data = f"blob {number}".encode()

        def read() -> bytes:
            names.append(threading.current_thread().name)
            return data

        return SmallBlob(Digest.of(data), len(data), read, "the thing")

    with store.batches(CancelToken()) as batches:
        batches.put([noted(number) for number in range(count)])
    assert len(list(store.walk())) == count
    return names


def test_a_disk_gets_threads_as_soon_as_it_is_known_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = threading.current_thread().name
    monkeypatch.setattr(waits, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)
    store = LocalContentStore(tmp_path / "disk", tmp_path / "locks")
    names = writers(store, BATCH + 20)
    assert names[:12] == [own] * 12
    assert own not in names[12:]
    for few in (11, 12):
        assert writers(LocalContentStore(tmp_path / f"{few}", tmp_path / "locks"), few) == [own] * few
    monkeypatch.setattr(time, "thread_time", itertools.count(0.0, 1000.0).__next__)
    store = LocalContentStore(tmp_path / "memory", tmp_path / "locks")
    assert set(writers(store, BATCH + 20)) == {own}


def test_without_the_library_of_threads_it_goes_on_alone(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "concurrent.futures", None)
    assert set(writers(store, 70)) == {threading.current_thread().name}
