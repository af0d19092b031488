"""IngestFiller an ingest: the bytes, their hash and their number agree, however they come and whatever breaks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagestore import CancelToken, Digest
from imagestore.content.direct_io import (
    BUFFER_BYTES,
    DIRECT,
    LEAST_DIRECT_BYTES,
    LEAST_LARGE_BYTES,
    LESS_BUFFER_BYTES,
    MOST_LARGE_BUFFERS,
)
from imagestore.content.local import LocalContentStore
from imagestore.errors import (
    DigestMismatchError,
    RegistryUnavailableError,
    SizeMismatchError,
    StoreError,
    StoreFullError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGE = LEAST_LARGE_BYTES + 2 * BUFFER_BYTES + 12_345
CONTENT = hashlib.shake_256(b"content").digest(LARGE)
DIGEST = Digest.of(CONTENT)


class Source:
    """Gives bytes in steps of some lengths, then breaks or ends."""

    def __init__(self, data: bytes, *, steps: tuple[int, ...] = (1 << 30,), failure: Exception | None = None) -> None:
        self._data = memoryview(data)
        self._steps = steps
        self._turn = 0
        self._failure = failure

    def readinto(self, buffer: memoryview) -> int:
        step = self._steps[self._turn % len(self._steps)]
        self._turn += 1
        count = min(step, len(buffer), len(self._data))
        if not count and self._failure is not None:
            raise self._failure
        buffer[:count] = self._data[:count]
        self._data = self._data[count:]
        return count


def nothing(_: int) -> None:
    pass


@pytest.fixture(params=["direct", "refused when opened", "refused when written"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalContentStore:
    direct = DIRECT
    if request.param != "direct":
        refuse(monkeypatch, direct, when_opened=request.param == "refused when opened")
    return LocalContentStore(tmp_path / "content", tmp_path / "locks")


def refuse(monkeypatch: pytest.MonkeyPatch, direct: int, *, when_opened: bool) -> None:
    """File systems that don't take O_DIRECT."""
    refused: set[int] = set()
    real_open, real_write, real_close = os.open, os.pwrite, os.close

    def opened(path: str, flags: int, *more: int, **named: int) -> int:
        if not flags & direct:
            return real_open(path, flags, *more, **named)
        if when_opened:
            raise OSError(errno.EINVAL, "no")
        descriptor = real_open(path, flags & ~direct, *more, **named)
        refused.add(descriptor)
        return descriptor

    def written(descriptor: int, data: memoryview, offset: int) -> int:
        if descriptor in refused:
            raise OSError(errno.EINVAL, "no")
        return real_write(descriptor, data, offset)

    def closed(descriptor: int) -> None:
        # Its number may be given again.
        refused.discard(descriptor)
        real_close(descriptor)

    monkeypatch.setattr("imagestore.content.direct_io.os.close", closed)
    monkeypatch.setattr("imagestore.content.direct_io.os.open", opened)
    monkeypatch.setattr("imagestore.content.direct_io.os.pwrite", written)


def fill(store: LocalContentStore, source: Source, *, commit: bool = True) -> int:
    with store.writer("x", expected=DIGEST, total=LARGE, cancel=CancelToken()) as writer:
        try:
            writer.fill(source.readinto, advanced=nothing)
        finally:
            offset = writer.offset
        if commit:
            writer.commit(DIGEST, LARGE)
    return offset


def stored(store: LocalContentStore) -> bytes:
    return store.path(DIGEST).read_bytes()


def test_many_transfers_at_once_have_smaller_buffers_and_come_whole(store: LocalContentStore) -> None:
    lengths: list[int] = []

    def begin(number: int) -> None:
        """A transfer during which the next one is under way."""
        body = CONTENT if number == MOST_LARGE_BUFFERS else bytes([number]) * LEAST_DIRECT_BYTES
        digest, source, has_begun = Digest.of(body), Source(body), False

        def readinto(buffer: memoryview) -> int:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                lengths.append(len(buffer))
                if number < MOST_LARGE_BUFFERS:
                    begin(number + 1)
            return source.readinto(buffer)

        with store.writer(f"x{number}", expected=digest, total=len(body), cancel=CancelToken()) as writer:
            writer.fill(readinto, advanced=nothing)
            writer.commit(digest, len(body))
        assert store.path(digest).read_bytes() == body

    begin(0)
    begin(MOST_LARGE_BUFFERS + 1)
    assert lengths == [*[BUFFER_BYTES] * MOST_LARGE_BUFFERS, LESS_BUFFER_BYTES, BUFFER_BYTES]


def test_a_large_blob_comes_whole(store: LocalContentStore) -> None:
    assert fill(store, Source(CONTENT)) == LARGE
    assert stored(store) == CONTENT


@pytest.mark.parametrize("kept", [0, 1, 4095, 4096, 4097, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 5000])
def test_what_came_before_a_failure_is_kept_and_resumed(store: LocalContentStore, kept: int) -> None:
    broken = Source(CONTENT[:kept], steps=(100_003,), failure=RegistryUnavailableError("broke", host="h"))
    with pytest.raises(RegistryUnavailableError, match="broke"):
        fill(store, broken, commit=False)
    with store.writer("x", expected=DIGEST, total=LARGE, cancel=CancelToken()) as writer:
        assert writer.offset == kept
        writer.fill(Source(CONTENT[kept:]).readinto, advanced=nothing)
        writer.commit(DIGEST, LARGE)
    assert stored(store) == CONTENT


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, LARGE), max_size=4).map(sorted),
    steps=st.lists(st.integers(1000, 3 * BUFFER_BYTES), min_size=1, max_size=4).map(tuple),
)
def test_any_number_of_resumes_gives_the_content(cuts: list[int], steps: tuple[int, ...]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        store = LocalContentStore(folder / "content", folder / "locks")
        position = 0
        for cut in [*cuts, LARGE]:
            with store.writer("x", expected=DIGEST, total=LARGE, cancel=CancelToken()) as writer:
                assert writer.offset == position
                writer.fill(Source(CONTENT[position:cut], steps=steps).readinto, advanced=nothing)
                position = cut
                if cut == LARGE:
                    writer.commit(DIGEST, LARGE)
                    break
        assert stored(store) == CONTENT
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "size", [0, 1, LEAST_DIRECT_BYTES - 1, LEAST_DIRECT_BYTES, BUFFER_BYTES, 3 * BUFFER_BYTES + 77]
)
@pytest.mark.parametrize("begun", [0, 5000])
def test_smaller_blobs_come_whole_too(store: LocalContentStore, size: int, begun: int) -> None:
    content = CONTENT[:size]
    digest = Digest.of(content)
    for some in (content[:begun], content[begun:]):
        with store.writer("x", expected=digest, total=size, cancel=CancelToken()) as writer:
            writer.fill(Source(some, steps=(70_001,)).readinto, advanced=nothing)
            if writer.offset == size:
                writer.commit(digest, size)
                break
    assert store.path(digest).read_bytes() == content


def test_wrong_bytes_are_not_committed(store: LocalContentStore) -> None:
    wrong = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(DigestMismatchError):
        fill(store, Source(wrong))
    assert not store.exists(DIGEST)


def test_an_observer_may_refuse_bytes_before_they_are_written(store: LocalContentStore) -> None:
    def refuse_more(offset: int) -> None:
        if offset > LARGE:
            raise SizeMismatchError("x", expected=LARGE, actual=offset)

    with store.writer("x", expected=DIGEST, total=LARGE, cancel=CancelToken()) as writer:
        with pytest.raises(SizeMismatchError):
            writer.fill(Source(CONTENT + b"more").readinto, advanced=refuse_more)
        assert writer.offset <= LARGE


@pytest.mark.parametrize("total", [LARGE, 1000])
def test_an_ingest_that_could_not_be_written_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int
) -> None:
    store = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    content = CONTENT[:total]
    digest = Digest.of(content)

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    with store.writer("x", expected=digest, total=total, cancel=CancelToken()) as writer:
        with monkeypatch.context() as patched:
            patched.setattr("imagestore.content.direct_io.os.pwrite", full)
            with pytest.raises(StoreFullError):
                writer.fill(Source(content).readinto, advanced=nothing)
        with pytest.raises(StoreError, match="failed before"):
            writer.commit(digest, total)
        writer.truncate()
        writer.fill(Source(content).readinto, advanced=nothing)
        writer.commit(digest, total)
    assert store.read(digest, limit_bytes=LARGE) == content


def test_a_full_disk_stops_the_transfer_soon_and_outweighs_what_failed_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    asked: list[int] = []

    def breaking(buffer: memoryview) -> int:
        asked.append(len(buffer))
        if len(asked) > 5:
            raise RegistryUnavailableError("broke", host="h")
        return len(buffer)

    monkeypatch.setattr("imagestore.content.direct_io.os.pwrite", full)
    store = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    with store.writer("x", expected=DIGEST, total=LARGE, cancel=CancelToken()) as writer:
        with pytest.raises(StoreFullError):
            writer.fill(breaking, advanced=nothing)
        with pytest.raises(StoreError, match="failed before"):
            writer.commit(DIGEST, LARGE)


def test_bytes_that_were_hashed_and_not_written_are_never_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(descriptor: int, data: memoryview, offset: int) -> int:
        raise MemoryError

    store = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    with store.writer("x", expected=DIGEST, total=LARGE, cancel=CancelToken()) as writer:
        with monkeypatch.context() as patched:
            patched.setattr("imagestore.content.direct_io.os.pwrite", exhausted)
            with pytest.raises(MemoryError):
                writer.fill(Source(CONTENT).readinto, advanced=nothing)
        with pytest.raises(StoreError, match="failed before"):
            writer.commit(DIGEST, LARGE)


def test_short_writes_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    real: Callable[..., int] = os.pwrite
    monkeypatch.setattr("imagestore.content.direct_io.os.pwrite", lambda fd, data, at: real(fd, data[:8192], at))
    fill(store, Source(CONTENT))
    assert stored(store) == CONTENT


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert not [each for each in threading.enumerate() if each.name.startswith("imagestore-")]


def test_large_blobs_are_hashed_and_written_by_threads_of_their_own(tmp_path: Path) -> None:
    store, seen = LocalContentStore(tmp_path / "content", tmp_path / "locks"), set[str]()

    def advanced(_: int) -> None:
        seen.update(thread.name.partition("_")[0] for thread in threading.enumerate())

    with store.writer("x", expected=DIGEST, total=LARGE, cancel=CancelToken()) as writer:
        writer.fill(Source(CONTENT).readinto, advanced=advanced)
        writer.commit(DIGEST, LARGE)
    assert {"imagestore-hash", "imagestore-write"} <= seen


@pytest.mark.parametrize("possible", [0, 1])
def test_a_large_blob_comes_whole_where_threads_cannot_be_started(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch, possible: int
) -> None:
    started, real = list[threading.Thread](), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if len(started) == possible:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert fill(store, Source(CONTENT)) == LARGE
    assert stored(store) == CONTENT


def test_an_interrupt_waits_until_nothing_is_hashed_or_written_any_more(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, real, asked = list[int](), os.pwrite, list[int]()

    def slowly(descriptor: int, data: memoryview, offset: int) -> int:
        under_way.append(offset)
        time.sleep(0.2)
        try:
            return real(descriptor, data, offset)
        finally:
            under_way.remove(offset)

    def interrupting(buffer: memoryview) -> int:
        asked.append(len(buffer))
        if len(asked) > 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        return len(buffer)

    monkeypatch.setattr("imagestore.content.direct_io.os.pwrite", slowly)
    with store.writer("x", expected=DIGEST, total=LARGE, cancel=CancelToken()) as writer:
        with pytest.raises(KeyboardInterrupt):
            writer.fill(interrupting, advanced=nothing)
        assert under_way == []


def test_fills_leave_no_descriptor_open(tmp_path: Path) -> None:
    store = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    fill(store, Source(CONTENT[:5]), commit=False)
    before = os.listdir("/proc/self/fd")
    with contextlib.suppress(RegistryUnavailableError):
        fill(store, Source(CONTENT[5:1000], failure=RegistryUnavailableError("broke", host="h")), commit=False)
    assert fill(store, Source(CONTENT), commit=False) >= LARGE
    assert len(os.listdir("/proc/self/fd")) == len(before)
