"""The behaviours of containerd's content test suite (core/content/testsuite), case by case, and its local store's own.

CrossNamespaceAppend, -Share, -Isolate and SharedNamespaceIsolate are about containerd's namespaces, which lie above a
content store; this one is flat, as containerd's bare store is.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from imagestore import CancelToken, Descriptor, Digest, Reference
from imagestore.content.api import IngestStatus
from imagestore.content.ingest import LocalIngestWriter
from imagestore.content.ingests import ingest_name
from imagestore.content.local import LocalContentStore
from imagestore.errors import (
    AlreadyExistsError,
    Category,
    DigestMismatchError,
    InvalidDigestError,
    SizeMismatchError,
    StoreBusyError,
    StoreError,
    WriterClosedError,
)
from imagestore.events import ignore
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.oci import media_types
from imagestore.store.pull.fetch import Fetcher

NEVER = CancelToken()
SIZES = (500, 5000, 50000)
PARTS = (0, 10, 50, 90, 100)


@pytest.fixture
def store(tmp_path: Path) -> LocalContentStore:
    return LocalContentStore(tmp_path / "content", tmp_path / "locks")


def content(size: int, seed: int = 0) -> bytes:
    return (bytes((seed + place) % 251 for place in range(251)) * (size // 251 + 1))[:size]


def opened(store: LocalContentStore, ref: str, *, expected: Digest | None = None, total: int = 0) -> LocalIngestWriter:
    if expected is None:
        return store.try_writer(ref, algorithm="sha256", total=total)
    return store.writer(ref, expected=expected, total=total, cancel=NEVER)


def status(store: LocalContentStore, ref: str) -> IngestStatus:
    found = store.status(ref)
    assert found is not None
    return found


def begun(store: LocalContentStore, ref: str, data: bytes, total: int) -> None:
    with opened(store, ref, expected=None, total=total) as writer:
        writer.write(data)


# Writer


def test_writers_are_listed_while_they_write_and_leave_read_only_content(store: LocalContentStore) -> None:
    bodies = {f"writer {number}": content(512 + number, number) for number in range(20)}
    writers = {ref: opened(store, ref, total=len(data)) for ref, data in bodies.items()}
    assert {each.ref for each in store.statuses()} == bodies.keys()
    threads = [threading.Thread(target=writers[ref].write, args=(data,)) for ref, data in bodies.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ref, data in bodies.items():
        assert status(store, ref).offset == len(data)
        digest = writers[ref].commit(Digest.of(data), len(data))
        assert store.read(digest, limit_bytes=len(data)) == data
        assert stat.S_IMODE(store.path(digest).stat().st_mode) & 0o333 == 0
        assert store.status(ref) is None
    assert list(store.statuses()) == []
    assert {info.digest for info in store.walk()} == {Digest.of(data) for data in bodies.values()}


# UpdateStatus


def test_status_moves_on_with_every_write_and_its_start_stays(store: LocalContentStore) -> None:
    with opened(store, "r", total=300) as writer:
        seen = [status(store, "r")]
        for _ in range(3):
            time.sleep(0.002)
            writer.write(content(100))
            seen.append(status(store, "r"))
    assert [each.offset for each in seen] == [0, 100, 200, 300]
    assert {(each.ref, each.total, each.started_at) for each in seen} == {("r", 300, seen[0].started_at)}
    assert all(before.updated_at <= after.updated_at for before, after in itertools.pairwise(seen))
    assert seen[-1].updated_at > seen[0].updated_at


# CommitExists


@pytest.mark.parametrize("is_declared", [True, False])
def test_content_that_is_here_already_is_said_and_the_ingest_goes(store: LocalContentStore, is_declared: bool) -> None:
    data = content(400)
    digest = Digest.of(data)
    first, second = opened(store, "first"), opened(store, "second")
    first.write(data)
    second.write(data)
    assert first.commit(digest, 400) == digest
    with pytest.raises(AlreadyExistsError):
        second.commit(digest if is_declared else None, 400 if is_declared else None)
    assert list(store.statuses()) == []
    assert store.read(digest, limit_bytes=400) == data
    if is_declared:
        with pytest.raises(AlreadyExistsError):
            opened(store, "third", expected=digest)


# Resume


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("percent", PARTS)
def test_a_reopened_ingest_goes_on_at_its_offset(store: LocalContentStore, size: int, percent: int) -> None:
    data = content(size)
    at = size * percent // 100
    begun(store, "r", data[:at], size)
    with opened(store, "r", expected=Digest.of(data), total=size) as writer:
        assert writer.offset == at
        writer.write(data[at:])
        writer.commit(Digest.of(data), size)
    assert store.read(Digest.of(data), limit_bytes=size) == data


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("percent", PARTS)
def test_a_reopened_ingest_may_be_written_anew(store: LocalContentStore, size: int, percent: int) -> None:
    data = content(size)
    begun(store, "r", content(size, seed=7)[: size * percent // 100], size)
    with opened(store, "r", expected=Digest.of(data), total=size) as writer:
        writer.truncate()
        assert (writer.offset, status(store, "r").offset) == (0, 0)
        writer.write(data)
        writer.commit(Digest.of(data), size)
    assert store.read(Digest.of(data), limit_bytes=size) == data


# ResumeDiscard, ResumeCopy, ResumeCopySeeker, ResumeCopyReaderAt: what copies is the fetcher


@dataclass
class Source:
    """An origin that can or can't begin in the middle."""

    data: bytes
    can_seek: bool
    offsets: list[int] = field(default_factory=list)
    start: int = 0
    at: int = 0
    hosts: Collection[str] = ()

    def document(self, reference: Reference, descriptor: Descriptor, *, cancel: CancelToken) -> bytes:
        raise AssertionError("no document is asked for")

    def blob(
        self, reference: Reference, descriptor: Descriptor, *, offset: int, avoid: Collection[str], cancel: CancelToken
    ) -> Self:
        self.offsets.append(offset)
        self.at = self.start = offset if self.can_seek else 0
        return self

    def readinto(self, buffer: memoryview) -> int:
        piece = self.data[self.at : self.at + min(256, len(buffer))]
        buffer[: len(piece)] = piece
        self.at += len(piece)
        return len(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("percent", PARTS)
@pytest.mark.parametrize("can_seek", [True, False])
def test_a_copy_resumes_from_sources_that_seek_and_from_those_that_cannot(
    store: LocalContentStore, size: int, percent: int, can_seek: bool
) -> None:
    data = content(size)
    layer = Descriptor(media_types.OCI_LAYER, Digest.of(data), size)
    at = size * percent // 100
    begun(store, layer.ingest_ref, data[:at], size)
    source = Source(data, can_seek)
    with store.small_blobs(NEVER) as small_blobs:
        fetcher = Fetcher(store, source, Reference.parse("r"), ignore, lambda: None, small_blobs)
        received = fetcher.fetch(layer, cancel=NEVER)
    assert source.offsets == ([] if at == size else [at])
    assert received == (0 if at == size else size - at if can_seek else size)
    assert store.read(layer.digest, limit_bytes=size) == data


# SmallBlob


def test_a_buffer_larger_than_the_blob_reads_it_whole(store: LocalContentStore) -> None:
    with opened(store, "small") as writer:
        writer.write(b"hello")
        digest = writer.commit()
    with store.open(digest) as blob:
        assert blob.read(4096) == b"hello"
        assert blob.read(4096) == b""


# Labels


def test_labels_are_replaced_whole_and_removed(tmp_path: Path) -> None:
    metadata, digest = SqliteMetadataStore(tmp_path / "metadata.db"), Digest.of(b"labelled")
    metadata.graph.label_content(digest, {"k1": "v1", "k2": "v2"})
    assert metadata.graph.content_labels(digest) == {"k1": "v1", "k2": "v2"}
    metadata.graph.label_content(digest, {"k1": "new"})
    assert metadata.graph.content_labels(digest) == {"k1": "new"}
    metadata.graph.label_content(digest, {"k1": "", "k3": "v3"})
    assert metadata.graph.content_labels(digest) == {"k3": "v3"}
    metadata.graph.label_content(digest, {"containerd.io/gc.root": "now"})
    assert metadata.graph.is_held(digest)
    metadata.graph.label_content(digest, {"containerd.io/gc.root": ""})
    assert not metadata.graph.is_held(digest)
    metadata.close()


# CommitErrorState


def test_a_failed_commit_keeps_ingest_and_lock_until_the_right_one(store: LocalContentStore) -> None:
    data = content(300)
    digest = Digest.of(data)
    writer = opened(store, "r", total=300)
    writer.write(data)
    failures: list[tuple[Digest | None, int | None, type[Exception]]] = [
        (digest, 299, SizeMismatchError),
        (Digest.of(b"other"), 300, DigestMismatchError),
        (Digest.of(b"other"), None, DigestMismatchError),
        (None, 1, SizeMismatchError),
    ]
    for expected, size, kind in failures:
        with pytest.raises(kind):
            writer.commit(expected, size)
        assert status(store, "r").offset == 300
        with pytest.raises(StoreBusyError, match="'r' is locked by another writer; begun") as caught:
            opened(store, "r")
        assert caught.value.category is Category.UNAVAILABLE
    writer.close()
    with opened(store, "r", total=300) as again:
        assert again.offset == 300
        assert again.commit(digest, 300) == digest


def test_a_writer_that_ended_is_refused_and_spares_its_successor(store: LocalContentStore) -> None:
    first = opened(store, "r", total=9)
    first.write(b"first")
    first.close()
    uses: list[Callable[[], object]] = [
        lambda: first.write(b"x"),
        lambda: first.fill(lambda _: 0, advanced=lambda _: None),
        lambda: first.hash_with("sha512"),
        first.truncate,
        first.commit,
    ]
    for use in uses:
        with pytest.raises(WriterClosedError, match="closed") as caught:
            use()
        assert caught.value.category is Category.FAILED_PRECONDITION
    with opened(store, "r", total=9) as second:
        first.abort()
        assert status(store, "r").offset == second.offset == 5


# The local store's own


@pytest.mark.parametrize(("written", "named"), [("sha256", "sha512"), ("sha512", "sha256"), ("sha384", "sha384")])
def test_a_commit_under_another_algorithm_reads_again(store: LocalContentStore, written: str, named: str) -> None:
    data = content(5000)
    writer = opened(store, "r", expected=Digest.of(data, written), total=5000)
    writer.write(data[:2000])
    writer.write(data[2000:])
    assert writer.commit(Digest.of(data, named), 5000) == Digest.of(data, named)
    assert store.read(Digest.of(data, named), limit_bytes=5000) == data


def test_a_digest_that_cannot_be_verified_opens_no_writer(store: LocalContentStore) -> None:
    with pytest.raises(InvalidDigestError):
        opened(store, "r", expected=Digest("blake3", "0" * 64))
    assert list(store.statuses()) == []


def test_an_ingest_whose_data_is_no_file_is_begun_again(store: LocalContentStore, tmp_path: Path) -> None:
    begun(store, "r", b"something", 9)
    data = store.root / "ingest" / ingest_name("r") / "data"
    for damage in ("folder", "link", "pipe"):
        data.unlink(missing_ok=True)
        if damage == "folder":
            data.mkdir()
        elif damage == "link":
            data.symlink_to(tmp_path / "elsewhere")
        else:
            os.mkfifo(data)
        with opened(store, "r", total=9) as writer:
            assert writer.offset == 0
            writer.write(b"something")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["startedat", "updatedat", "total"])
@pytest.mark.parametrize("text", ["", "soon", "\u0665"])
def test_notes_that_cannot_be_read_stop_no_resume(store: LocalContentStore, name: str, text: str) -> None:
    begun(store, "r", b"part", 8)
    (store.root / "ingest" / ingest_name("r") / name).write_text(text)
    with opened(store, "r", total=8) as writer:
        assert writer.offset == 4
    assert status(store, "r").updated_at > 1_600_000_000


def test_a_failed_sync_keeps_nothing_that_the_disk_may_not_have(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed fsync the kernel takes the lost pages for written: the next fsync would succeed."""

    def lose(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    ends: list[Callable[[LocalIngestWriter], object]] = [LocalIngestWriter.commit, LocalIngestWriter.close]
    for end in ends:
        writer = opened(store, "r", total=4)
        assert writer.offset == 0
        writer.write(b"data")
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", lose)
            try:
                end(writer)
            except StoreError as error:
                assert "Input/output error" in str(error)
        assert list(store.statuses()) == []
    assert list(store.walk()) == []
    assert opened(store, "r", total=4).offset == 0


def test_an_unreadable_ingest_is_begun_again_and_holds_no_file(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(store, "r", b"part", 8)
    before = len(os.listdir("/dev/fd"))

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "pread", fail)
        with opened(store, "r", total=8) as writer:
            assert writer.offset == 0
    assert len(os.listdir("/dev/fd")) == before
