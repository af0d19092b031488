"""What a fetcher does with bytes that are not what their descriptor says."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest

from imagestore import CancelToken, Descriptor, Digest, Reference
from imagestore.content.api import ContentInfo
from imagestore.content.local import LocalContentStore
from imagestore.errors import (
    DigestMismatchError,
    IntegrityError,
    InvalidDigestError,
    OperationCancelledError,
    ReferenceNotFoundError,
    SizeMismatchError,
)
from imagestore.events import BlobDone, BlobStarted, Event
from imagestore.oci.media_types import DOCKER_FOREIGN_LAYER
from imagestore.store.pull.fetch import Fetcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Self

LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Unasked:
    """An origin that must not be asked."""

    def document(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("asked for a document")

    def blob(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("asked for a blob")


@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize(("raw", "size", "failure"), [(b"{}", 3, SizeMismatchError), (b"[]", 2, DigestMismatchError)])
def test_damaged_bytes_at_hand_are_not_fetched_again(
    tmp_path: Path, raw: bytes, size: int, failure: type[IntegrityError], *, is_beside: bool
) -> None:
    store, cancel = LocalContentStore(tmp_path / "content", tmp_path / "locks"), CancelToken()
    descriptor = Descriptor(MANIFEST, Digest.of(b"{}"), size)
    with store.small_blobs(cancel) as small_blobs:
        fetcher = Fetcher(
            content=store,
            client=Unasked(),
            reference=Reference.parse("registry.example/app:1"),
            observer=lambda _: None,
            keep_alive=lambda: None,
            small_blobs=small_blobs,
        )
        with pytest.raises(failure), fetcher.pipeline(cancel) as pipeline:
            fetcher.keep(descriptor, raw, cancel=cancel, pipeline=pipeline if is_beside else None)
        assert os.listdir(tmp_path / "locks") == []
    assert not store.exists(descriptor.digest)


class Served:
    """An origin of one blob, and its transfer, in pieces of four bytes."""

    hosts = ("registry.example",)

    def __init__(self, content: bytes, *, can_resume: bool = True, on_read: Callable[[], None] = lambda: None) -> None:
        self.content = content
        self.can_resume = can_resume
        self.on_read = on_read
        self.offsets: list[int] = []
        self.start = self.at = 0

    def document(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("asked for a document")

    def blob(self, *_: object, offset: int, **__: object) -> Self:
        self.offsets.append(offset)
        self.start = self.at = offset if self.can_resume else 0
        return self

    def readinto(self, buffer: memoryview) -> int:
        self.on_read()
        part = self.content[self.at : self.at + min(4, len(buffer))]
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


CONTENT = b"the bytes of a layer"
BLOB = Descriptor(LAYER, Digest.of(CONTENT), len(CONTENT))


@contextlib.contextmanager
def fetching(
    store: LocalContentStore, origin: Served | Unasked, cancel: CancelToken
) -> Iterator[tuple[Fetcher, list[Event]]]:
    """A fetcher from an origin, and what it tells."""
    events: list[Event] = []
    with store.small_blobs(cancel) as small_blobs:
        yield (
            Fetcher(
                content=store,
                client=origin,
                reference=Reference.parse("registry.example/app:1"),
                observer=events.append,
                keep_alive=lambda: None,
                small_blobs=small_blobs,
            ),
            events,
        )


def interrupted_at(root: Path, offset: int) -> LocalContentStore:
    """A store with the beginning of the blob."""
    store = LocalContentStore(root / "content", root / "locks")
    writer = store.writer(BLOB.ingest_ref, expected=BLOB.digest, total=BLOB.size, cancel=CancelToken())
    writer.write(CONTENT[:offset])
    writer.close()
    return store


@pytest.mark.parametrize(("can_resume", "start"), [(True, 7), (False, 0)])
def test_an_interrupted_blob_goes_on_where_its_origin_can_or_begins_again(
    tmp_path: Path, start: int, *, can_resume: bool
) -> None:
    store, origin, cancel = interrupted_at(tmp_path, 7), Served(CONTENT, can_resume=can_resume), CancelToken()
    with fetching(store, origin, cancel) as (fetcher, events):
        assert fetcher.fetch(BLOB, cancel=cancel) == len(CONTENT) - start
    # Once: bytes appended in the wrong place would be damage, and fetched again.
    assert origin.offsets == [7]
    assert [event for event in events if isinstance(event, BlobStarted)] == [BlobStarted(BLOB, start)]
    assert events[-1] == BlobDone(BLOB, len(CONTENT) - start)
    assert store.path(BLOB.digest).read_bytes() == CONTENT


def test_a_blob_whose_bytes_all_came_before_is_only_verified(tmp_path: Path) -> None:
    store, cancel = interrupted_at(tmp_path, len(CONTENT)), CancelToken()
    with fetching(store, Unasked(), cancel) as (fetcher, events):
        assert fetcher.fetch(BLOB, cancel=cancel) == 0
    assert events[-1] == BlobDone(BLOB, 0)


def test_a_cancelled_fetch_ends_at_the_next_piece_whatever_its_origin_does(tmp_path: Path) -> None:
    store, cancel = interrupted_at(tmp_path, 7), CancelToken()
    origin = Served(CONTENT, on_read=cancel.cancel)
    with fetching(store, origin, cancel) as (fetcher, _), pytest.raises(OperationCancelledError):
        fetcher.fetch(BLOB, cancel=cancel)
    assert not store.exists(BLOB.digest)
    (left,) = store.statuses()
    assert left.offset < len(CONTENT)


def test_a_blob_that_is_here_is_done_once_and_not_asked_for(tmp_path: Path) -> None:
    store, cancel = interrupted_at(tmp_path, len(CONTENT)), CancelToken()
    with fetching(store, Unasked(), cancel) as (fetcher, events):
        fetcher.fetch(BLOB, cancel=cancel)
        events.clear()
        assert fetcher.fetch(BLOB, cancel=cancel) == 0
    assert events == [BlobDone(BLOB, 0)]


def test_what_could_not_be_verified_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    store, cancel = LocalContentStore(tmp_path / "content", tmp_path / "locks"), CancelToken()
    odd = Descriptor(LAYER, Digest.parse("blake3:" + "0" * 64), 7)
    with (
        fetching(store, Unasked(), cancel) as (fetcher, _),
        pytest.raises(InvalidDigestError, match="can't be verified"),
    ):
        fetcher.check([BLOB, odd], ())


class Missing(Unasked):
    """An origin that doesn't have the blob."""

    def blob(self, *_: object, **__: object) -> NoReturn:
        raise ReferenceNotFoundError("blob is not there", host="registry.example", status=404)


@pytest.mark.parametrize(("media_type", "is_foreign"), [(LAYER, False), (DOCKER_FOREIGN_LAYER, True)])
def test_what_its_origin_does_not_have_leaves_nothing_and_only_a_foreign_layer_is_called_so(
    tmp_path: Path, media_type: str, *, is_foreign: bool
) -> None:
    store, cancel, wanted = interrupted_at(tmp_path, 7), CancelToken(), replace(BLOB, media_type=media_type)
    with fetching(store, Missing(), cancel) as (fetcher, _), pytest.raises(ReferenceNotFoundError) as caught:
        fetcher.fetch(wanted, cancel=cancel)
    assert ("foreign layer" in str(caught.value)) == is_foreign
    # The bytes of what nobody has can't be completed.
    assert list(store.statuses()) == []


def test_an_origin_without_end_is_stopped_where_the_blob_would_end(tmp_path: Path) -> None:
    store, cancel = interrupted_at(tmp_path, 7), CancelToken()
    origin = Served(CONTENT + b"more" * 1000)
    with fetching(store, origin, cancel) as (fetcher, _), pytest.raises(SizeMismatchError):
        fetcher.fetch(BLOB, cancel=cancel)
    assert origin.at <= len(CONTENT) + 4
    assert list(store.statuses()) == []


def test_the_lease_is_kept_alive_while_bytes_come(tmp_path: Path) -> None:
    store, cancel, kept = LocalContentStore(tmp_path / "content", tmp_path / "locks"), CancelToken(), [0]

    def keep_alive() -> None:
        kept[0] += 1

    with fetching(store, Served(CONTENT), cancel) as (fetcher, _):
        replace(fetcher, keep_alive=keep_alive).fetch(BLOB, cancel=cancel)
    assert kept[0] >= 1


def test_a_document_at_hand_takes_the_place_of_what_came_of_it_before(tmp_path: Path) -> None:
    store, cancel = LocalContentStore(tmp_path / "content", tmp_path / "locks"), CancelToken()
    raw = b"{}"
    descriptor = Descriptor(MANIFEST, Digest.of(raw), len(raw))
    with store.writer(descriptor.ingest_ref, expected=descriptor.digest, total=len(raw), cancel=cancel) as writer:
        writer.write(b"[")
    with fetching(store, Unasked(), cancel) as (fetcher, _):
        fetcher.keep(descriptor, raw, cancel=cancel)
    assert store.path(descriptor.digest).read_bytes() == raw


def test_a_blob_that_was_repaired_after_the_first_look_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cancel = interrupted_at(tmp_path, len(CONTENT)), CancelToken()
    with fetching(store, Unasked(), cancel) as (fetcher, events):
        fetcher.fetch(BLOB, cancel=cancel)
        find, looks = store.find, []

        def short_at_first(digest: Digest) -> ContentInfo | None:
            looks.append(digest)
            found = find(digest)
            return replace(found, size=7) if found is not None and len(looks) == 1 else found

        monkeypatch.setattr(store, "find", short_at_first)
        assert fetcher.fetch(BLOB, cancel=cancel) == 0
    assert events[-1] == BlobDone(BLOB, 0)
    assert store.path(BLOB.digest).read_bytes() == CONTENT


def test_an_empty_blob_is_fetched(tmp_path: Path) -> None:
    store, cancel = LocalContentStore(tmp_path / "content", tmp_path / "locks"), CancelToken()
    empty = Descriptor(LAYER, Digest.of(b""), 0)
    with fetching(store, Missing(), cancel) as (fetcher, _), pytest.raises(ReferenceNotFoundError):
        fetcher.fetch(empty, cancel=cancel)
    assert not store.exists(empty.digest)
