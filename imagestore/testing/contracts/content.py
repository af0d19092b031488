"""The content port's contract: every adapter passes ContentContract."""

from __future__ import annotations

import threading
import time
from typing import Final

import pytest

from imagestore.content import ContentStore, SmallBlob
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    DigestMismatchError,
    IngestLockedError,
    InvalidInputError,
    OperationCancelledError,
    SizeMismatchError,
    WriterClosedError,
)
from imagestore.oci import Digest
from imagestore.util.cancel import CancelToken

#: A blob, and what it hashes to.
DATA: Final = b"some content" * 1000
DIGEST: Final = Digest.of(DATA)
ABSENT: Final = Digest.of(b"never written")


def put(content: ContentStore, data: bytes) -> Digest:
    """Bring a blob in."""
    digest = Digest.of(data)
    writer = content.writer(f"put-{digest}", expected=digest, total=len(data), cancel=CancelToken())
    with writer:
        writer.write(data)
        return writer.commit(digest, len(data))


class ContentContract:
    """What every ContentStore has to do. Make a class from it that has a fixture ``content``: an empty store."""

    def test_what_is_not_there(self, content: ContentStore) -> None:
        """Absent content is no error where it is looked for, and ContentNotFoundError where it is read."""
        assert not content.exists(ABSENT)
        assert content.find(ABSENT) is None
        for ask in (content.info, content.open):
            with pytest.raises(ContentNotFoundError):
                ask(ABSENT)
        with pytest.raises(ContentNotFoundError):
            content.read(ABSENT, limit_bytes=10)
        assert content.delete(ABSENT) == 0
        assert not content.delete_damaged(ABSENT)
        assert not [*content.walk(), *content.names(), *content.statuses()]

    def test_a_blob_is_there_once_it_is_committed(self, content: ContentStore) -> None:
        """What is written is visible from the commit on, and not before."""
        before = time.time() - 2
        with content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
            writer.write(DATA[:100])
            writer.write(memoryview(DATA)[100:])
            assert (writer.offset, content.exists(DIGEST)) == (len(DATA), False)
            assert writer.digest == DIGEST
            assert writer.commit(DIGEST, len(DATA)) == DIGEST
        content.make_durable(["sha256"])
        info = content.info(DIGEST)
        assert (info.digest, info.size) == (DIGEST, len(DATA))
        assert before <= info.modified_at <= time.time() + 2
        with content.open(DIGEST) as file:
            assert file.read() == DATA
        assert content.read(DIGEST, limit_bytes=len(DATA)) == DATA
        assert content.find(DIGEST) == info
        assert [each.digest for each in content.walk()] == [DIGEST]
        assert list(content.names()) == [str(DIGEST)]
        assert content.status("r") is None

    def test_limits_of_reading(self, content: ContentStore) -> None:
        """read() takes no more than its limit."""
        put(content, DATA)
        with pytest.raises(SizeMismatchError):
            content.read(DIGEST, limit_bytes=len(DATA) - 1)

    def test_a_blob_is_read_from_any_place(self, content: ContentStore) -> None:
        """What open() gives can be read from an offset, in any order, and ends where the blob does."""
        put(content, DATA)
        with content.open(DIGEST) as blob:
            for place in (len(DATA) - 3, 5, 0, len(DATA)):
                assert blob.seek(place) == place
                assert blob.read(4) == DATA[place : place + 4]
                assert blob.tell() == min(place + 4, len(DATA))

    def test_what_does_not_verify_is_no_blob_and_can_be_put_right(self, content: ContentStore) -> None:
        """A wrong digest or size commits nothing, and the writer stays open."""
        with content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
            writer.write(DATA[:-1] + b"x")
            with pytest.raises(DigestMismatchError):
                writer.commit(DIGEST, len(DATA))
            writer.truncate()
            assert writer.offset == 0
            writer.write(DATA[:-1])
            with pytest.raises(SizeMismatchError):
                writer.commit(DIGEST, len(DATA))
            assert not content.exists(DIGEST)
            writer.write(DATA[-1:])
            writer.commit(DIGEST, len(DATA))
        assert content.exists(DIGEST)

    def test_a_closed_writer_takes_nothing(self, content: ContentStore) -> None:
        """A closed writer refuses all but abort() and close(), which are harmless."""
        with content.writer("r", expected=DIGEST, total=0, cancel=CancelToken()) as writer:
            writer.write(b"x")
        for use in (lambda: writer.write(b"y"), writer.truncate, writer.commit):
            with pytest.raises(WriterClosedError):
                use()
        writer.abort()
        writer.close()
        # Another may have it now.
        assert content.status("r") is not None

    def test_an_ingest_is_resumed(self, content: ContentStore) -> None:
        """A writer that was closed is resumed at its offset."""
        with content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
            writer.write(DATA[:500])
        (status,) = content.statuses()
        assert (status.ref, status.offset, status.total) == ("r", 500, len(DATA))
        assert content.status("r") == status
        with content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
            assert writer.offset == 500
            writer.write(DATA[500:])
            writer.commit(DIGEST, len(DATA))
        assert content.read(DIGEST, limit_bytes=len(DATA)) == DATA

    def test_an_ingest_of_another_size_begins_anew(self, content: ContentStore) -> None:
        """What was written for another blob isn't continued."""
        with content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
            writer.write(DATA[:500])
        with content.writer("r", expected=ABSENT, total=13, cancel=CancelToken()) as writer:
            assert writer.offset == 0

    def test_filling_keeps_what_came_before_the_source_fails(self, content: ContentStore) -> None:
        """fill() keeps the bytes before a failure, and goes on from there."""
        pieces = [DATA[:300], DATA[300:700]]

        def readinto(buffer: memoryview) -> int:
            """Two pieces, then a failure."""
            if not pieces:
                raise ValueError("the source broke")
            piece = pieces.pop(0)
            buffer[: len(piece)] = piece
            return len(piece)

        offsets: list[int] = []
        with content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
            with pytest.raises(ValueError, match="the source broke"):
                writer.fill(readinto, advanced=offsets.append)
            assert writer.offset == offsets[-1] == 700
            rest = iter([DATA[700:], b""])

            def more(buffer: memoryview) -> int:
                """The rest, then the end."""
                piece = next(rest)
                buffer[: len(piece)] = piece
                return len(piece)

            writer.fill(more, advanced=offsets.append)
            writer.commit(DIGEST, len(DATA))

    def test_a_second_copy_is_an_error(self, content: ContentStore) -> None:
        """Content that is there already is AlreadyExistsError, and leaves no ingest."""
        with content.try_writer("other", algorithm="sha256", total=0) as late:
            late.write(DATA)
            put(content, DATA)
            with pytest.raises(AlreadyExistsError):
                late.commit()
        with pytest.raises(AlreadyExistsError):
            content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken())
        assert list(content.statuses()) == []

    def test_one_writer_at_a_time(self, content: ContentStore) -> None:
        """An ingest has one writer; others wait, are refused, or learn that it is done."""
        waits: list[bool] = []
        with content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
            with pytest.raises(IngestLockedError):
                content.try_writer("r", algorithm="sha256", total=0)
            assert not content.abort("r")
            with pytest.raises(OperationCancelledError):
                content.writer(
                    "r", expected=DIGEST, total=0, cancel=CancelToken(0.05), on_wait=lambda: waits.append(True)
                )
            assert waits == [True]
            came: list[type[Exception]] = []

            def follow() -> None:
                """Wait for the same blob."""
                try:
                    content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken(120)).close()
                except AlreadyExistsError as error:
                    came.append(type(error))

            follower = threading.Thread(target=follow)
            follower.start()
            writer.write(DATA)
            writer.commit(DIGEST, len(DATA))
            follower.join()
            assert came == [AlreadyExistsError]

    def test_names_and_algorithms_of_ingests(self, content: ContentStore) -> None:
        """An ingest needs a name and an algorithm that can be verified; that may change on the way."""
        for ref, algorithm in (("", "sha256"), ("r", "md5")):
            with pytest.raises(InvalidInputError):
                content.try_writer(ref, algorithm=algorithm, total=0)
        with content.try_writer("r", algorithm="sha256", total=0) as writer:
            writer.write(DATA)
            writer.hash_with("sha512")
            assert writer.commit() == Digest.of(DATA, "sha512")
        assert content.exists(Digest.of(DATA, "sha512"))
        assert not content.exists(DIGEST)

    def test_what_is_written_can_be_read_along(self, content: ContentStore) -> None:
        """The bytes of an ingest can be read before its end."""
        with content.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
            writer.write(DATA[:400])
            with writer.open_written() as file:
                assert file.read(400) == DATA[:400]

    def test_ingests_are_thrown_away(self, content: ContentStore) -> None:
        """Ingests are aborted by name, by age, and by their writer."""
        for ref in ("a", "b"):
            with content.try_writer(ref, algorithm="sha256", total=0) as writer:
                writer.write(b"x")
        assert content.abort("a")
        assert content.abort("never there")
        assert list(content.stale_ingests(time.time() - 60)) == []
        (stale,) = content.stale_ingests(time.time() + 60)
        assert stale.ref == "b"
        assert content.abort_stale(stale)
        with content.try_writer("c", algorithm="sha256", total=0) as writer:
            writer.write(b"x")
            writer.abort()
        content.clear_locks()
        assert list(content.statuses()) == []

    def test_small_blobs(self, content: ContentStore) -> None:
        """Small blobs in a batch are verified like any other."""
        many = {Digest.of(data): data for data in (str(number).encode() for number in range(200))}
        with content.small_blobs(CancelToken()) as small:
            small.put([SmallBlob(each, len(data), lambda data=data: data, "x") for each, data in many.items()])  # type: ignore[misc]  # bound here
            with pytest.raises(DigestMismatchError):
                small.put([SmallBlob(ABSENT, 5, lambda: b"wrong", "x")])
            with small.writer("r", expected=DIGEST, total=len(DATA), cancel=CancelToken()) as writer:
                writer.write(DATA)
                assert writer.held() in (None, DATA)
                writer.commit(DIGEST, len(DATA), has_durable_name=False)
        content.make_durable(["sha256"])
        assert {each.digest for each in content.walk()} == {*many, DIGEST}

    @pytest.mark.parametrize("data", [b"", DATA], ids=["empty", "some"])
    def test_a_size_of_0_is_unknown(self, content: ContentStore, data: bytes) -> None:
        """A total of 0 is no promise about the size."""
        digest = Digest.of(data)
        with content.small_blobs(CancelToken()) as small:
            for open_writer in (small.writer, content.writer):
                with open_writer("r", expected=digest, total=0, cancel=CancelToken()) as writer:
                    writer.write(data)
                    assert writer.commit(digest, len(data)) == digest
                assert content.read(digest, limit_bytes=len(DATA)) == data
                assert content.delete(digest) == len(data)
                assert not content.exists(digest)

    def test_deleting(self, content: ContentStore) -> None:
        """Deleting tells what was freed; names that are no digests harm nothing."""
        digests = [put(content, str(number).encode()) for number in range(5)]
        assert content.delete(digests[0]) == 1
        with content.deleter() as deleter:
            assert deleter.delete(str(digests[1])) == 1
            assert deleter.delete(str(digests[1])) is None
            some = [str(each) for each in (ABSENT, *digests[2:])]
            deleted = deleter.delete_some(some, lambda: False)
            assert deleted.sizes == {str(ABSENT): None, **{str(each): 1 for each in digests[2:]}}
            assert (deleted.failures, deleted.left) == ({}, [])
            # Labels may name anything.
            assert deleter.delete("nonsense") is None
            assert deleter.delete(f"md5:{'0' * 32}") is None
            deleter.let_go()
        assert list(content.walk()) == []

    def test_deleting_ends_when_time_is_up(self, content: ContentStore) -> None:
        """delete_some() removes one blob at least, and says what is left."""
        digests = [str(put(content, str(number).encode())) for number in range(3)]
        with content.deleter() as deleter:
            deleted = deleter.delete_some(digests, lambda: True)
        assert len(deleted.sizes) == 1
        assert deleted.left == [each for each in digests if each not in deleted.sizes]

    def test_a_whole_blob_is_not_taken_for_damaged(self, content: ContentStore) -> None:
        """delete_damaged() leaves a whole blob alone."""
        put(content, DATA)
        assert content.delete_damaged(DIGEST)
        assert content.exists(DIGEST)

    def test_what_it_says_of_itself(self, content: ContentStore) -> None:
        """Names, space, and what a place without neighbours answers."""
        assert content.name
        assert content.scratch.is_dir()
        assert content.free_bytes() > 0
        disk = content.disk()
        assert 0 <= disk.free_bytes <= disk.total_bytes
        content.check_room()
        content.make_room()
        assert not content.is_at_source(ABSENT, 13)
        assert content.adopt(ABSENT, 13, cancel=CancelToken()) is None
