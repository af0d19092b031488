"""Content leaves some of a disk to those who free space, whichever way it is written."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from imagestore.archive.spool import spool
from imagestore.cancel import CancelToken
from imagestore.content.local import LocalContentStore
from imagestore.content.small_writer import SmallBlob
from imagestore.digest import Digest
from imagestore.errors import StoreFullError

MEBIBYTE = 1 << 20
DATA = b"x" * (5 * MEBIBYTE)
DIGEST = Digest.of(DATA)
NEVER = CancelToken()


@pytest.fixture
def store(tmp_path: Path) -> LocalContentStore:
    return LocalContentStore(tmp_path / "content", tmp_path / "locks")


def disk(*, free: int, total: int = 1 << 40) -> SimpleNamespace:
    return SimpleNamespace(f_frsize=4096, f_blocks=total // 4096, f_bavail=free // 4096)


def source() -> Callable[[memoryview], int]:
    rest = memoryview(DATA)

    def readinto(buffer: memoryview) -> int:
        nonlocal rest
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        rest = rest[count:]
        return count

    return readinto


def by_pieces(store: LocalContentStore) -> None:
    with store.writer("ref", expected=DIGEST, total=len(DATA), cancel=NEVER) as writer:
        writer.write(DATA)
        writer.commit(DIGEST)


def from_a_source(store: LocalContentStore) -> None:
    with store.writer("ref", expected=DIGEST, total=len(DATA), cancel=NEVER) as writer:
        writer.fill(source(), advanced=lambda _: None)
        writer.commit(DIGEST)


def whole(store: LocalContentStore) -> None:
    small = DATA[:MEBIBYTE]
    with (
        store.small_blobs(NEVER) as small_blobs,
        store.blob_writer(small_blobs, "ref", expected=Digest.of(small), total=MEBIBYTE, cancel=NEVER) as writer,
    ):
        writer.write(small)
        writer.commit(Digest.of(small))


def in_a_batch(store: LocalContentStore) -> None:
    small = DATA[: 200 * 1024]
    with store.small_blobs(NEVER) as small_blobs:
        small_blobs.put([SmallBlob(Digest.of(small), len(small), lambda: small, "the thing")])


def spooled(store: LocalContentStore) -> None:
    """An archive from a pipe, whose limit was told when there was more."""
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe, open(writing, "wb") as end:
        sender = threading.Thread(target=lambda: send(end, DATA))
        sender.start()
        try:
            with spool(pipe.fileno(), folder=store.root, limit_bytes=1 << 30, what="pipe", cancel=NEVER) as file:
                assert file.read(0, len(DATA)) == DATA
        finally:
            pipe.close()
            sender.join()


def send(pipe: BinaryIO, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(data)


WAYS = pytest.mark.parametrize("bring", [by_pieces, from_a_source, whole, in_a_batch])


@WAYS
def test_the_last_of_a_disk_is_not_taken(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch, bring: Callable[[LocalContentStore], None]
) -> None:
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk(free=32 * MEBIBYTE + 100 * 1024))
    with pytest.raises(
        StoreFullError,
        match=r"No space left on device for content: the last 32 MiB of a disk, .* are for removing images",
    ):
        bring(store)
    assert not list(store.walk())
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk(free=38 * MEBIBYTE))
    bring(store)
    assert len(list(store.walk())) == 1
    assert os.listdir(store.root / "ingest") == []


def test_nor_by_an_archive_that_is_kept_meanwhile(store: LocalContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk(free=32 * MEBIBYTE + 1024))
    with pytest.raises(StoreFullError, match="No space left"):
        spooled(store)
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk(free=38 * MEBIBYTE))
    spooled(store)


@WAYS
def test_a_disk_that_counts_no_blocks_is_filled(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch, bring: Callable[[LocalContentStore], None]
) -> None:
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk(free=0, total=0))
    bring(store)
    assert len(list(store.walk())) == 1


def test_what_is_free_for_content_is_told_without_what_it_leaves(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thirty-second of small disks."""
    large, small = 1 << 40, 64 * MEBIBYTE
    for total, free, told in [
        (large, 1 << 35, (1 << 35) - 32 * MEBIBYTE),
        (large, MEBIBYTE, 0),
        (small, 8 * MEBIBYTE, 6 * MEBIBYTE),
    ]:
        monkeypatch.setattr(os, "statvfs", lambda _, free=free, total=total: disk(free=free, total=total))
        assert store.free_bytes() == told
