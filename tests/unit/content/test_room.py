"""While what is kept back for removals is given up, no content is written, whichever way it comes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagestore import CancelToken, Digest
from imagestore.content.api import SmallBlob
from imagestore.content.local import LocalContentStore
from imagestore.errors import StoreFullError
from imagestore.util.disk_reserve import BALLAST_BYTES, Ballast

MEBIBYTE = 1 << 20
DATA = b"x" * (5 * MEBIBYTE)
DIGEST = Digest.of(DATA)
NEVER = CancelToken()


@pytest.fixture
def ballast(tmp_path: Path) -> Ballast:
    kept = Ballast(tmp_path / "ballast")
    kept.keep()
    return kept


@pytest.fixture
def store(tmp_path: Path, ballast: Ballast) -> LocalContentStore:
    return LocalContentStore(tmp_path / "content", tmp_path / "locks", ballast=ballast)


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
        small_blobs.writer("ref", expected=Digest.of(small), total=MEBIBYTE, cancel=NEVER) as writer,
    ):
        writer.write(small)
        writer.commit(Digest.of(small))


def in_a_batch(store: LocalContentStore) -> None:
    small = DATA[: 200 * 1024]
    with store.small_blobs(NEVER) as small_blobs:
        small_blobs.put([SmallBlob(Digest.of(small), len(small), lambda: small, "the thing")])


@pytest.mark.parametrize("bring", [by_pieces, from_a_source, whole, in_a_batch])
def test_what_removals_are_given_is_not_for_content(
    store: LocalContentStore, ballast: Ballast, bring: Callable[[LocalContentStore], None]
) -> None:
    ballast.release()
    with pytest.raises(StoreFullError, match="No space left on device: what is left is for removing images"):
        bring(store)
    assert not list(store.walk())
    store.make_room()
    bring(store)
    assert len(list(store.walk())) == 1
    assert os.listdir(store.root / "ingest") == []


@pytest.mark.parametrize("bring", [by_pieces, from_a_source, whole, in_a_batch])
def test_content_that_took_the_reserve_in_between_gives_it_back(
    store: LocalContentStore,
    ballast: Ballast,
    monkeypatch: pytest.MonkeyPatch,
    bring: Callable[[LocalContentStore], None],
) -> None:
    write = os.pwrite, os.write

    def given_up(number: int) -> Callable[..., int]:
        def writing(*given: Any) -> int:
            ballast.release()
            return write[number](*given)

        return writing

    monkeypatch.setattr(os, "pwrite", given_up(0))
    monkeypatch.setattr(os, "write", given_up(1))
    with pytest.raises(StoreFullError, match="for removing images"):
        bring(store)
    assert not list(store.walk())
    kept = [path for path in (store.root / "ingest").rglob("data") if path.stat().st_size]
    # What a pull was filled with it throws away itself.
    assert bool(kept) == (bring is from_a_source)


def test_a_pull_is_refused_before_its_lease_while_the_reserve_is_given_up(
    store: LocalContentStore, ballast: Ballast, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.check_room()
    ballast.release()
    store.check_room()  # there is enough, and it is kept back again
    ballast.release()
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_frsize=4096, f_blocks=999, f_bavail=130))
    with pytest.raises(StoreFullError, match="for removing images"):
        store.check_room()


def test_content_that_comes_when_the_space_is_given_up_is_refused(store: LocalContentStore, ballast: Ballast) -> None:
    def given_up(offset: int) -> None:
        ballast.release()

    with store.writer("ref", expected=DIGEST, total=len(DATA), cancel=NEVER) as writer:
        with pytest.raises(StoreFullError, match="for removing images"):
            writer.fill(source(), advanced=given_up)
        writer.abort()


@pytest.mark.parametrize(("blocks", "free"), [(1 << 20, 5 * 4096), (0, sys.maxsize)])
def test_a_disk_that_counts_no_blocks_has_room_without_end(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch, blocks: int, free: int
) -> None:
    status = SimpleNamespace(f_frsize=4096, f_blocks=blocks, f_bavail=5)
    monkeypatch.setattr(os, "statvfs", lambda _: status)
    assert store.free_bytes() == free


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC])
def test_space_is_kept_back_where_a_file_system_allocates_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    Ballast(tmp_path / "ballast").keep()
    sizes = [path.stat().st_size for path in tmp_path.glob("ballast")]
    assert sizes == ([] if number == errno.ENOSPC else [BALLAST_BYTES])
