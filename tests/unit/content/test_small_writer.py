"""Small blobs keep the promises of ingests: verified, durable, one writer, resumable after a failure, no remains."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagestore import CancelToken, Digest
from imagestore.content.direct_io import DIRECT, LEAST_DIRECT_BYTES
from imagestore.content.ingest import LocalIngestWriter
from imagestore.content.local import LocalContentStore
from imagestore.content.small_writer import SMALL_BYTES, SmallWriter
from imagestore.errors import (
    AlreadyExistsError,
    DigestMismatchError,
    SizeMismatchError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    WriterClosedError,
)
from imagestore.util.file_locks import FileLock
from tests.unit.content.remains import left_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.content.small_writer import LocalSmallBlobs

SIZES = [1, 4096, LEAST_DIRECT_BYTES - 1, LEAST_DIRECT_BYTES, LEAST_DIRECT_BYTES + 1, SMALL_BYTES - 1, SMALL_BYTES]
REF = "layer-x"


def content(size: int) -> bytes:
    return hashlib.shake_256(b"small").digest(size)


def source(data: bytes, *steps: int) -> Callable[[memoryview], int]:
    """Gives bytes in steps of some lengths."""
    rest, lengths = memoryview(data), list(steps)

    def readinto(buffer: memoryview) -> int:
        nonlocal rest
        count = min(len(buffer), len(rest), lengths.pop(0) if lengths else len(rest))
        buffer[:count] = rest[:count]
        rest = rest[count:]
        return count

    return readinto


def nothing(_: int) -> None:
    pass


def opened(
    store: LocalContentStore, small_blobs: LocalSmallBlobs, data: bytes, *, total: int | None = None
) -> LocalIngestWriter | SmallWriter:
    size = len(data) if total is None else total
    return small_blobs.writer(REF, expected=Digest.of(data), total=size, cancel=CancelToken())


@pytest.fixture
def small_blobs(store: LocalContentStore) -> Iterator[LocalSmallBlobs]:
    with store.small_blobs(CancelToken()) as small_blobs:
        yield small_blobs


@pytest.fixture(params=["direct", "refused when opened", "refused when written"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems that take O_DIRECT, and those that don't."""
    real_open, real_write = os.open, os.pwrite

    def opening(path: str, flags: int, *more: int, **named: int) -> int:
        if flags & DIRECT and request.param == "refused when opened":
            raise OSError(errno.EINVAL, "no")
        return real_open(path, flags, *more, **named)

    def written(descriptor: int, data: memoryview, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT and request.param == "refused when written":
            raise OSError(errno.EINVAL, "no")
        return real_write(descriptor, data, offset)

    monkeypatch.setattr("imagestore.content.small_writer.os.open", opening)
    monkeypatch.setattr("imagestore.content.direct_io.os.pwrite", written)


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize("size", SIZES)
def test_a_small_blob_is_whole_read_only_and_leaves_nothing_else(store: LocalContentStore, size: int) -> None:
    data = content(size)
    with store.small_blobs(CancelToken()) as small_blobs, opened(store, small_blobs, data) as writer:
        writer.fill(source(data), advanced=nothing)
        assert os.listdir(store.root / "ingest") == []
        assert writer.commit(Digest.of(data), size) == Digest.of(data)
    assert store.read(Digest.of(data), limit_bytes=size) == data
    assert store.path(Digest.of(data)).stat().st_mode & 0o777 == 0o444
    assert left_over(store) == []


@settings(max_examples=20, deadline=None)
@given(size=st.integers(0, 3 * LEAST_DIRECT_BYTES), steps=st.lists(st.integers(1, LEAST_DIRECT_BYTES), max_size=5))
def test_it_does_not_matter_how_the_bytes_come(size: int, steps: list[int]) -> None:
    data, seen = content(size), [0]
    with tempfile.TemporaryDirectory() as folder:
        store = LocalContentStore(Path(folder) / "content", Path(folder) / "locks")
        with store.small_blobs(CancelToken()) as small_blobs, opened(store, small_blobs, data) as writer:
            writer.fill(source(data, *steps), advanced=seen.append)
            assert seen[-1] == writer.offset == size
            assert seen == sorted(seen)
            writer.commit(Digest.of(data), size)
        assert store.read(Digest.of(data), limit_bytes=size) == data


def test_larger_blobs_and_begun_ones_have_an_ingest(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    with opened(store, small_blobs, b"large", total=SMALL_BYTES + 1) as writer:
        assert isinstance(writer, LocalIngestWriter)
        writer.abort()
    with store.writer(REF, expected=Digest.of(b"begun"), total=5, cancel=CancelToken()) as writer:
        writer.write(b"beg")
    with opened(store, small_blobs, b"begun") as writer:
        assert (type(writer), writer.offset) == (LocalIngestWriter, 3)


def test_bytes_of_a_closed_writer_are_resumed(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    data = content(1000)
    with opened(store, small_blobs, data) as writer:
        writer.fill(source(data[:600]), advanced=nothing)
    (status,) = store.statuses()
    assert (status.ref, status.offset, status.total) == (REF, 600, 1000)
    with opened(store, small_blobs, data) as writer:
        assert writer.offset == 600
        writer.fill(source(data[600:]), advanced=nothing)
        writer.commit(Digest.of(data), 1000)
    assert store.read(Digest.of(data), limit_bytes=1000) == data


def test_aborted_and_empty_writers_leave_no_ingest(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    with opened(store, small_blobs, b"abc") as writer:
        writer.write(b"ab")
        writer.abort()
    with opened(store, small_blobs, b"abc"):
        pass
    assert left_over(store) == []


def test_wrong_bytes_reach_no_disk_and_can_be_replaced(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    with opened(store, small_blobs, b"right") as writer:
        writer.write(b"wrong")
        with pytest.raises(DigestMismatchError):
            writer.commit(Digest.of(b"right"), 5)
        with pytest.raises(SizeMismatchError):
            writer.commit(Digest.of(b"right"), 6)
        assert os.listdir(store.root / "ingest") == []
        writer.truncate()
        writer.write(b"right")
        writer.commit(Digest.of(b"right"), 5)
    assert store.read(Digest.of(b"right"), limit_bytes=5) == b"right"


def test_more_bytes_than_are_small_are_refused(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    data = content(SMALL_BYTES + 1)
    with opened(store, small_blobs, b"?") as writer:
        with pytest.raises(SizeMismatchError):
            writer.fill(source(data), advanced=nothing)
        with pytest.raises(SizeMismatchError):
            writer.write(b"one more")
        writer.abort()


def test_an_observer_may_refuse_bytes(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    def refused(offset: int) -> None:
        raise SizeMismatchError("too long", expected=1, actual=offset)

    with opened(store, small_blobs, b"x") as writer:
        with pytest.raises(SizeMismatchError, match="too long"):
            writer.fill(source(b"xyz"), advanced=refused)
        assert writer.offset == 0


def test_one_fetches_and_the_others_find(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    waited = threading.Event()
    found: list[Exception] = []

    def second() -> None:
        try:
            small_blobs.writer(REF, expected=Digest.of(b"x"), total=1, cancel=CancelToken(), on_wait=waited.set)
        except AlreadyExistsError as error:
            found.append(error)

    with opened(store, small_blobs, b"x") as writer:
        thread = threading.Thread(target=second)
        thread.start()
        assert waited.wait(60)
        writer.write(b"x")
        writer.commit(Digest.of(b"x"), 1)
    thread.join(60)
    assert len(found) == 1


def test_writers_at_once_have_buffers_of_their_own(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    def writer_of(data: bytes) -> LocalIngestWriter | SmallWriter:
        digest = Digest.of(data)
        return small_blobs.writer(str(digest), expected=digest, total=len(data), cancel=CancelToken())

    for _ in range(2):
        with writer_of(b"one") as one, writer_of(b"two") as two:
            one.write(b"one")
            two.write(b"two")
            assert isinstance(one, SmallWriter)
            assert isinstance(two, SmallWriter)
            assert (one.held(), two.held()) == (b"one", b"two")
            one.abort()
            two.abort()


@pytest.mark.parametrize("has_durable_name", [True, False])
def test_the_folder_is_synced_only_if_no_later_step_does_it(
    store: LocalContentStore, small_blobs: LocalSmallBlobs, monkeypatch: pytest.MonkeyPatch, *, has_durable_name: bool
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with opened(store, small_blobs, b"x") as writer:
        writer.write(b"x")
        writer.commit(Digest.of(b"x"), 1, has_durable_name=has_durable_name)
    assert len(synced) == 1 + has_durable_name


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, StoreError), (errno.ENOSPC, StoreFullError)])
@pytest.mark.parametrize("step", ["pwrite", "fsync", "rename"])
def test_a_disk_that_fails_leaves_no_name_and_no_file(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch, step: str, number: int, kind: type[StoreError]
) -> None:
    def failing(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with store.small_blobs(CancelToken()) as small_blobs:
        with opened(store, small_blobs, b"x") as writer:
            writer.write(b"x")
            with monkeypatch.context() as broken:
                broken.setattr(os, step, failing)
                with pytest.raises(kind):
                    writer.commit(Digest.of(b"x"), 1)
        (folder,) = os.listdir(store.root / "ingest")
        assert os.listdir(store.root / "ingest" / folder) == []
        assert not store.exists(Digest.of(b"x"))
        with opened(store, small_blobs, b"x") as writer:
            writer.write(b"x")
            writer.commit(Digest.of(b"x"), 1)
    assert left_over(store) == []


def test_a_folder_that_cannot_be_made_is_tried_again(
    store: LocalContentStore, small_blobs: LocalSmallBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for _ in range(2):
        with opened(store, small_blobs, b"x") as writer, monkeypatch.context() as full:
            full.setattr(Path, "mkdir", failing)
            writer.write(b"x")
            with pytest.raises(StoreFullError):
                writer.commit(Digest.of(b"x"), 1)
    with opened(store, small_blobs, b"x") as writer:
        writer.write(b"x")
        writer.commit(Digest.of(b"x"), 1)


def test_a_name_that_was_taken_in_between_is_an_error(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    with store.small_blobs(CancelToken()):
        with opened(store, small_blobs, b"x") as writer:
            writer.write(b"x")
            path = store.root / "blobs" / "sha256" / Digest.of(b"x").encoded
            path.write_bytes(b"x")
            with pytest.raises(AlreadyExistsError):
                writer.commit(Digest.of(b"x"), 1)
        path.unlink()
        path.mkdir()
        with opened(store, small_blobs, b"x") as writer:
            writer.write(b"x")
            with pytest.raises(StoreCorruptError, match="something else"):
                writer.commit(Digest.of(b"x"), 1)


def test_a_folder_under_way_is_never_stale(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    with opened(store, small_blobs, b"x") as writer:
        writer.write(b"x")
        writer.commit(Digest.of(b"x"), 1)
    (stale,) = store.stale_ingests(4e9)
    assert not store.abort_stale(stale)


def test_another_algorithm_gets_its_folder(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    digest = Digest.of(b"x", "sha512")
    with small_blobs.writer(REF, expected=digest, total=1, cancel=CancelToken()) as writer:
        writer.write(b"x")
        writer.commit(digest, 1)
    assert store.read(digest, limit_bytes=1) == b"x"


def test_a_closed_writer_says_so(store: LocalContentStore, small_blobs: LocalSmallBlobs) -> None:
    writer = opened(store, small_blobs, b"x")
    writer.write(b"x")
    writer.commit(Digest.of(b"x"), 1)
    with pytest.raises(WriterClosedError):
        writer.write(b"y")
    with pytest.raises(WriterClosedError):
        writer.truncate()
    with pytest.raises(WriterClosedError):
        writer.fill(source(b""), advanced=nothing)
    writer.close()
    writer.abort()


@pytest.mark.parametrize("failure", [MemoryError(), KeyboardInterrupt(), StoreFullError("full")])
def test_a_writer_lets_go_even_if_its_bytes_cannot_be_kept(
    failure: BaseException, store: LocalContentStore, small_blobs: LocalSmallBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> LocalIngestWriter:
        raise failure

    monkeypatch.setattr(store, "_ingest", failing)
    writer = opened(store, small_blobs, b"abc")
    writer.write(b"a")
    with contextlib.suppress(MemoryError, KeyboardInterrupt):
        writer.close()
    assert os.listdir(store.root.parent / "locks") == []
    opened(store, small_blobs, b"abc").abort()


def test_a_lock_is_let_go_of_even_if_its_file_cannot_be_removed(
    store: LocalContentStore, small_blobs: LocalSmallBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.EROFS, "no")

    writer = opened(store, small_blobs, b"abc")
    with monkeypatch.context() as patch:
        patch.setattr("imagestore.util.file_locks.os.unlink", failing)
        writer.abort()
    lock = FileLock(next((store.root.parent / "locks").glob("*")))
    assert lock.try_acquire()
    lock.release()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM])
def test_any_refusal_of_direct_writes_means_the_usual_way(
    code: int, store: LocalContentStore, small_blobs: LocalSmallBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def opening(path: str, flags: int, *more: int, **named: int) -> int:
        if flags & DIRECT:
            raise OSError(code, "no")
        return real_open(path, flags, *more, **named)

    monkeypatch.setattr("imagestore.content.small_writer.os.open", opening)
    data = content(LEAST_DIRECT_BYTES + 1)
    with opened(store, small_blobs, data) as writer:
        writer.write(data)
        writer.commit(Digest.of(data), len(data))
    assert store.read(Digest.of(data), limit_bytes=len(data)) == data


def test_when_too_many_blobs_are_in_memory_the_next_has_an_ingest(
    store: LocalContentStore, small_blobs: LocalSmallBlobs
) -> None:
    def writer_of(number: int) -> LocalIngestWriter | SmallWriter:
        digest = Digest.of(b"%d" % number)
        return small_blobs.writer(str(digest), expected=digest, total=9, cancel=CancelToken())

    for _ in range(2):
        writers = [writer_of(number) for number in range(40)]
        small = [isinstance(each, SmallWriter) for each in writers]
        assert small == [True] * 24 + [False] * 16
        for each in writers:
            each.abort()
