"""Content that machines share: two folders over one index and one bucket of Ceph, which fails, loses and is misused."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import httpx
import obstore
import pytest

from imagestore import BucketContentStore, BucketSettings, CancelToken, Digest
from imagestore.content import Bucket, ContentStore, SharedContentStore
from imagestore.content.api import SmallBlob
from imagestore.content.shared_objects import SharedObjects
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    ContentUnavailableError,
    ImageStoreError,
    IntegrityError,
    OperationCancelledError,
    PreconditionError,
    StoreError,
    UnsupportedError,
)
from imagestore.metadata import PostgresMetadataStore
from imagestore.testing.contracts import ContentContract
from imagestore.testing.contracts.content import put
from tests.support.ceph import Ceph
from tests.support.memory_index import UPLOAD_SECONDS, MemoryObjectIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from imagestore.content.shared_objects import StoredObject

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("bucket_keys")]

PATIENCE: Final = 60.0
DATA: Final = b"shared content" * 1000
DIGEST: Final = Digest.of(DATA)


@pytest.fixture
def index() -> MemoryObjectIndex:
    return MemoryObjectIndex()


@pytest.fixture
def content(settings: BucketSettings, tmp_path: Path, index: MemoryObjectIndex) -> SharedContentStore:
    return SharedContentStore(settings, tmp_path / "here", index, owner="one database")


@pytest.fixture
def other(settings: BucketSettings, tmp_path: Path, index: MemoryObjectIndex) -> SharedContentStore:
    """Another machine's."""
    return SharedContentStore(settings, tmp_path / "there", index, owner="one database")


class TestSharedContent(ContentContract):
    """Its fixture is the one above."""


class TestSharedContentOverPostgres(ContentContract):
    @pytest.fixture
    def content(self, settings: BucketSettings, tmp_path: Path, database_url: str) -> Iterator[ContentStore]:
        with contextlib.closing(PostgresMetadataStore(database_url)) as records:
            yield SharedContentStore(settings, tmp_path, records.objects, owner=records.database.id)

    def test_an_upload_is_abandoned_after_it_was_given_up(self, database_url: str) -> None:
        with contextlib.closing(PostgresMetadataStore(database_url)) as records:
            index = records.objects
            for key in ("a", "b"):
                index.begin_upload(key)
            index.abandon_upload("a")
            index.forget_doomed(index.doomed(10))
            # Its object came after others had deleted what there was of it.
            index.abandon_upload("a")
            assert index.doomed(10) == ["a"]
            assert index.publish(DIGEST, len(DATA), "b")
            index.abandon_upload("b")
            assert index.doomed(10) == ["a"]

    def test_what_a_transaction_removes_is_deleted_after_it(
        self, settings: BucketSettings, database_url: str, tmp_path: Path
    ) -> None:
        with contextlib.closing(PostgresMetadataStore(database_url)) as records:
            content = SharedContentStore(settings, tmp_path, records.objects, owner=records.database.id)
            put(content, DATA)
            with contextlib.suppress(ZeroDivisionError), records.exclusive():
                assert content.delete(DIGEST) == len(DATA)
                raise ZeroDivisionError
            assert content.delete_damaged(DIGEST)
            with records.exclusive():
                content.delete(DIGEST)
            assert keys(settings)
            content.clear_locks()
            assert not keys(settings)


def keys(settings: BucketSettings) -> set[str]:
    """Of all objects that are blobs'."""
    return {key for key, _ in Bucket(settings).objects()}


def key_of(index: MemoryObjectIndex, digest: Digest = DIGEST) -> str:
    found = index.find(digest)
    assert found is not None
    return found.key


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Follower:
    """A writer that another machine opens in a thread; what came of it."""

    def __init__(self, content: SharedContentStore, cancel: CancelToken | None = None) -> None:
        self.waits = 0
        self.error: ImageStoreError | None = None
        self.offset = -1
        self._content = content
        self._cancel = cancel or CancelToken(PATIENCE)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        def count() -> None:
            self.waits += 1

        try:
            with self._content.writer(
                "theirs", expected=DIGEST, total=len(DATA), cancel=self._cancel, on_wait=count
            ) as writer:
                self.offset = writer.offset
                writer.write(DATA)
                writer.commit(DIGEST, len(DATA))
        except ImageStoreError as error:
            self.error = error

    def wait_until_it_waits(self) -> None:
        wait_until(lambda: self.waits > 0, "it never waited")

    def end(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def test_machines_see_each_others_content(
    content: SharedContentStore, other: SharedContentStore, settings: BucketSettings, index: MemoryObjectIndex
) -> None:
    put(content, DATA)
    assert other.read(DIGEST, limit_bytes=len(DATA)) == DATA
    assert other.info(DIGEST) == content.info(DIGEST)
    with pytest.raises(AlreadyExistsError):
        put(other, DATA)
    (key,) = keys(settings)
    assert key == key_of(index)
    assert key.startswith(f"blobs/sha256/{DIGEST.encoded}/")
    assert not index.uploads
    with pytest.raises(UnsupportedError):
        other.path(DIGEST)
    assert other.delete(DIGEST) == len(DATA)
    assert content.find(DIGEST) is None
    assert not keys(settings)
    # The next one has an object of its own.
    put(content, DATA)
    assert key_of(index) != key


def test_a_large_blob_is_read_with_jumps(content: SharedContentStore, other: SharedContentStore) -> None:
    data = os.urandom(20 << 20)
    digest = put(content, data)
    with other.open(digest) as file:
        file.seek(-10, os.SEEK_END)
        assert file.read() == data[-10:]
        file.seek(5 << 20)
        assert file.read(1000) == data[5 << 20 : (5 << 20) + 1000]
    assert other.delete_damaged(digest)


def test_signed_urls_lead_to_the_object(content: SharedContentStore) -> None:
    put(content, DATA)
    assert httpx.get(content.signed(DIGEST, 60)).content == DATA
    for absent in (Digest.of(b"absent"), Digest("md5", "0" * 32)):
        with pytest.raises(ContentNotFoundError):
            content.signed(absent, 60)


def test_what_one_machine_brings_another_one_waits_for(
    content: SharedContentStore, other: SharedContentStore, index: MemoryObjectIndex
) -> None:
    with content.writer("ours", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
        follower = Follower(other)
        wait_until(lambda: index.refused_flights > 2, "it never asked again")
        writer.write(DATA)
        writer.commit(DIGEST, len(DATA))
        follower.end()
    assert isinstance(follower.error, AlreadyExistsError)
    assert (follower.waits, follower.offset) == (1, -1)
    assert list(other.statuses()) == []


@pytest.mark.parametrize("way", ["close", "abort", "death"])
def test_when_the_first_one_gives_up_the_second_goes_on(
    content: SharedContentStore, other: SharedContentStore, index: MemoryObjectIndex, way: str
) -> None:
    writer = content.writer("ours", expected=DIGEST, total=len(DATA), cancel=CancelToken())
    writer.write(DATA[:10])
    follower = Follower(other)
    follower.wait_until_it_waits()
    {"close": writer.close, "abort": writer.abort, "death": index.lose_flights}[way]()
    follower.end()
    assert follower.error is None
    assert follower.offset == 0
    writer.close()
    assert content.exists(DIGEST)


def test_a_wait_is_cancelled_and_the_ingest_stays(content: SharedContentStore, other: SharedContentStore) -> None:
    with other.try_writer("theirs", algorithm="sha256", total=len(DATA)) as before:
        before.write(DATA[:10])
    cancel = CancelToken()
    with content.writer("ours", expected=DIGEST, total=len(DATA), cancel=CancelToken()):
        follower = Follower(other, cancel)
        follower.wait_until_it_waits()
        cancel.cancel("enough")
        follower.end()
    assert isinstance(follower.error, OperationCancelledError)
    status = other.status("theirs")
    assert status is not None
    assert status.offset == 10


def test_the_second_writer_leaves_no_object(
    content: SharedContentStore, other: SharedContentStore, settings: BucketSettings, index: MemoryObjectIndex
) -> None:
    original = index.begin_upload

    def begin(key: str) -> None:
        """Another machine is faster, after this one has looked."""
        original(key)
        index.begin_upload = original  # type: ignore[method-assign]
        put(other, DATA)

    with content.try_writer("ours", algorithm="sha256", total=0) as writer:
        writer.write(DATA)
        index.begin_upload = begin  # type: ignore[method-assign]
        with pytest.raises(AlreadyExistsError, match="first"):
            writer.commit()
    assert keys(settings) == {key_of(index)}
    assert not index.uploads
    assert list(content.statuses()) == []
    assert content.delete_damaged(DIGEST)


def test_a_bucket_that_fails_loses_no_ingest(
    content: SharedContentStore, gateway: Ceph, index: MemoryObjectIndex
) -> None:
    with content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
        writer.write(DATA)
        gateway.kill_gateway()
        try:
            with pytest.raises(ContentUnavailableError):
                writer.commit(DIGEST, len(DATA))
        finally:
            gateway.start_gateway()
    assert index.calls == ["begin_upload", "abandon_upload"]
    assert not content.exists(DIGEST)
    with content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
        assert writer.offset == len(DATA)
        writer.commit(DIGEST, len(DATA))
    assert content.delete_damaged(DIGEST)


def test_an_index_that_fails_hides_no_first_error(
    content: SharedContentStore, settings: BucketSettings, index: MemoryObjectIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise StoreError("the database is away")

    def lose(*_: object) -> Any:
        raise ContentUnavailableError("the answer was lost")

    with content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
        writer.write(DATA)
        with monkeypatch.context() as patch:
            patch.setattr(index, "publish", lose)
            patch.setattr(index, "abandon_upload", fail)
            with pytest.raises(ContentUnavailableError, match="lost"):
                writer.commit(DIGEST, len(DATA))
        # What nobody named and nobody abandoned is given up after a while.
        (key,) = keys(settings)
        assert list(index.uploads) == [key]
        index.uploads[key] -= 2 * UPLOAD_SECONDS
        content.clear_locks()
        assert not keys(settings)
        assert not index.doomed_keys
        writer.commit(DIGEST, len(DATA))
    assert content.exists(DIGEST)


def test_an_upload_that_was_given_up_is_no_content(
    content: SharedContentStore, settings: BucketSettings, index: MemoryObjectIndex
) -> None:
    """It took so long that another machine thought this one dead, and so it hears at the next piece."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 61.0
        return now

    class Slow(io.BytesIO):
        def read(self, count: int | None = -1, /) -> bytes:
            if self.tell() == 4 << 20:
                index.uploads.clear()
            return super().read(count)

    data = os.urandom(20 << 20)
    digest = Digest.of(data)
    objects = SharedObjects(Bucket(settings), index, clock=clock)
    with pytest.raises(ContentUnavailableError, match="given up"):
        objects.send(digest, len(data), Slow(data), cancel=CancelToken())
    assert index.calls.count("renew_upload") > 2
    assert index.calls[-1] == "abandon_upload"
    objects.delete_doomed()
    assert not keys(settings)
    assert index.find(digest) is None
    objects.send(digest, len(data), io.BytesIO(data), cancel=CancelToken())
    assert content.delete_damaged(digest)


def test_a_row_without_its_object_is_damage(
    content: SharedContentStore, gateway: Ceph, settings: BucketSettings, index: MemoryObjectIndex
) -> None:
    raw = gateway.store(settings)
    for rest in (None, DATA[:-1]):
        put(content, DATA)
        if rest is None:
            obstore.delete(raw, key_of(index))
        else:
            obstore.put(raw, key_of(index), rest)
        assert content.exists(DIGEST)
        for use in (lambda: content.open(DIGEST), lambda: content.read(DIGEST, limit_bytes=len(DATA))):
            with pytest.raises(IntegrityError, match=DIGEST.encoded) as caught:
                use()
            assert "repair" in caught.value.hint
        assert not content.delete_damaged(DIGEST)
        assert not content.exists(DIGEST)
        assert not keys(settings)
    put(content, DATA)
    obstore.put(raw, key_of(index), bytes(len(DATA)))
    with pytest.raises(IntegrityError):
        content.read(DIGEST, limit_bytes=len(DATA))
    assert not content.delete_damaged(DIGEST)
    put(content, DATA)
    assert content.delete_damaged(DIGEST)


def test_what_was_replaced_is_found_by_its_new_row(
    content: SharedContentStore, other: SharedContentStore, index: MemoryObjectIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(content, DATA)
    old = index.find(DIGEST)
    other.delete(DIGEST)
    put(other, DATA)
    current, answers = index.find, [old]

    def find(digest: Digest) -> StoredObject | None:
        return answers.pop() if answers else current(digest)

    monkeypatch.setattr(index, "find", find)
    assert content.read(DIGEST, limit_bytes=len(DATA)) == DATA
    assert not answers
    answers.append(old)
    assert content.delete_damaged(DIGEST)
    assert not answers


def test_a_reader_goes_on_in_the_new_object(content: SharedContentStore, other: SharedContentStore) -> None:
    data = os.urandom(4 << 20)
    digest = put(content, data)
    with content.open(digest) as file:
        assert file.read(10) == data[:10]
        other.delete(digest)
        put(other, data)
        file.seek(-10, os.SEEK_END)
        assert file.read() == data[-10:]
        other.delete(digest)
        file.seek(0)
        with pytest.raises(IntegrityError, match="went"):
            file.read(10)


def test_objects_go_when_their_removal_is_committed(
    content: SharedContentStore, settings: BucketSettings, index: MemoryObjectIndex
) -> None:
    digests = [str(put(content, str(number).encode())) for number in range(5)]
    with content.deleter() as deleter:
        with contextlib.suppress(ZeroDivisionError), index.transaction():
            assert len(deleter.delete_some(digests, lambda: False).sizes) == 5
            raise ZeroDivisionError
        deleter.let_go()
        assert len(keys(settings)) == len(list(content.names())) == 5
        with index.transaction():
            deleted = deleter.delete_some(digests, lambda: True)
            assert deleted.sizes == {digests[0]: 1}
            assert deleted.left == digests[1:]
            deleter.let_go()
            assert len(keys(settings)) == 5
        deleter.let_go()
        assert len(keys(settings)) == 4
        with index.transaction():
            deleter.delete_some([*digests, "nonsense"], lambda: False)
        deleter.let_go()
    assert not keys(settings)
    assert not index.doomed_keys


def test_a_bucket_that_is_away_keeps_no_collection_from_its_end(
    content: SharedContentStore,
    gateway: Ceph,
    settings: BucketSettings,
    index: MemoryObjectIndex,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(content, DATA)
    gateway.kill_gateway()
    try:
        with content.deleter() as deleter:
            assert deleter.delete(str(DIGEST)) == len(DATA)
            deleter.let_go()
    finally:
        gateway.start_gateway()
    assert "aren't deleted now" in caplog.text
    assert set(index.doomed_keys) == keys(settings) != set()
    content.clear_locks()
    assert not keys(settings)
    assert not index.doomed_keys


def test_strays_are_swept(
    content: SharedContentStore, gateway: Ceph, settings: BucketSettings, index: MemoryObjectIndex
) -> None:
    put(content, DATA)
    stray = f"blobs/sha256/{DIGEST.encoded}/0123456789ab"
    obstore.put(gateway.store(settings), stray, DATA)
    assert content.sweep_strays(time.time() - 3600) == 0
    assert stray in keys(settings)
    assert content.sweep_strays(time.time() + 3600) == 1
    assert keys(settings) == {key_of(index)}
    assert content.delete_damaged(DIGEST)


def test_small_blobs_wait_for_no_transaction_of_their_caller(
    content: SharedContentStore, index: MemoryObjectIndex
) -> None:
    gone = put(content, b"gone")
    many = {Digest.of(data): data for data in (str(number).encode() for number in range(20))}
    with content.small_blobs(CancelToken(PATIENCE)) as small, index.transaction():
        content.deleter().delete(str(gone))
        small.put([SmallBlob(each, len(data), lambda data=data: data, "x") for each, data in many.items()])  # type: ignore[misc]  # bound here
        small.put([SmallBlob(each, len(data), lambda data=data: data, "x") for each, data in many.items()])  # type: ignore[misc]  # bound here
    assert {each.digest for each in content.walk()} == set(many)
    assert index.calls.count("publish") == 21


def test_a_prefix_belongs_to_one_database(
    content: ContentStore, settings: BucketSettings, tmp_path: Path, index: MemoryObjectIndex
) -> None:
    put(content, DATA)
    with pytest.raises(PreconditionError, match="another store"):
        SharedContentStore(settings, tmp_path / "b", MemoryObjectIndex(), owner="another database")
    with pytest.raises(PreconditionError, match="another store"):
        BucketContentStore(settings, tmp_path / "c")
    obstore.delete(Ceph(tmp_path, settings.endpoint).store(settings), "owner")
    with pytest.raises(PreconditionError, match="no store owns"):
        SharedContentStore(settings, tmp_path / "d", index, owner="one database")
