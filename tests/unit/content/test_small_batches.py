"""Many small blobs at once keep the promises of single ones."""

from __future__ import annotations

import errno
import os

import pytest

from imagestore import CancelToken, Digest
from imagestore.content.api import BATCH, SmallBlob
from imagestore.content.local import LocalContentStore
from imagestore.errors import (
    DigestMismatchError,
    ImageStoreError,
    OperationCancelledError,
    SizeMismatchError,
    StoreCorruptError,
    StoreError,
)
from tests.unit.content.remains import left_over


def blob(data: bytes, *, algorithm: str = "sha256", size: int | None = None, comes: bytes | None = None) -> SmallBlob:
    digest = Digest.of(data, algorithm)
    raw = data if comes is None else comes
    return SmallBlob(digest, len(data) if size is None else size, lambda: raw, "the thing")


def test_blobs_are_whole_read_only_and_leave_nothing_else(store: LocalContentStore) -> None:
    data = [f"blob {number}".encode() for number in range(2 * BATCH + 3)] + [b""]
    other = blob(b"other", algorithm="sha512")
    with store.small_blobs(CancelToken()) as small_blobs:
        small_blobs.put([*map(blob, data), other])
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
    with store.small_blobs(CancelToken()) as small_blobs, pytest.raises(kind, match="the thing"):
        small_blobs.put([blob(b"right"), wrong])
    assert not store.exists(wrong.digest)
    assert left_over(store) == []


def test_a_blob_that_another_writer_stored_is_no_error(store: LocalContentStore) -> None:
    with store.small_blobs(CancelToken()) as one, store.small_blobs(CancelToken()) as two:
        one.put([blob(b"same")])
        two.put([blob(b"same")])
    assert store.read(Digest.of(b"same"), limit_bytes=9) == b"same"


def test_something_else_in_a_blobs_place_is_refused(store: LocalContentStore) -> None:
    thing = blob(b"x")
    (store.root / "blobs" / "sha256" / thing.digest.encoded).mkdir(parents=True)
    with store.small_blobs(CancelToken()) as small_blobs, pytest.raises(StoreCorruptError, match="something else"):
        small_blobs.put([thing])
    assert left_over(store) == []


def test_a_batch_whose_sync_fails_names_nothing_and_keeps_nothing(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for single blobs: what a failed sync lost would read well until the machine restarts."""

    def lose(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with store.small_blobs(CancelToken()) as small_blobs, monkeypatch.context() as broken:
        broken.setattr(os, "fsync", lose)
        with pytest.raises(StoreError, match="Input/output error"):
            small_blobs.put([blob(b"one"), blob(b"two")])
    assert list(store.walk()) == []
    assert left_over(store) == []


def test_a_cancelled_batch_writes_nothing_more(store: LocalContentStore) -> None:
    token = CancelToken()
    with store.small_blobs(token) as small_blobs:
        small_blobs.put([blob(b"before")])
        token.cancel()
        with pytest.raises(OperationCancelledError):
            small_blobs.put([blob(b"after")])
    assert [info.digest for info in store.walk()] == [Digest.of(b"before")]


def test_a_batch_under_way_is_never_stale_and_a_dead_ones_folder_is(store: LocalContentStore) -> None:
    with store.small_blobs(CancelToken()) as small_blobs:
        small_blobs.put([blob(b"first")])
        (stale,) = store.stale_ingests(4e9)
        assert not store.abort_stale(stale)
    dead = store.root / "ingest" / ("0" * 64)
    dead.mkdir()
    (dead / Digest.of(b"x").encoded).write_bytes(b"x")
    (stale,) = store.stale_ingests(4e9)
    assert (stale.offset, store.abort_stale(stale)) == (1, True)
    assert left_over(store) == []
