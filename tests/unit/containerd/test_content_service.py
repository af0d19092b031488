"""The content service as containerd's clients see it: the write state machine, reading, labels, lists."""

from __future__ import annotations

import asyncio
import errno
import gc
import hashlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagestore import CancelToken, Digest, ImageStore, platforms
from imagestore.containerd import content
from imagestore.containerd.content_view import content_view_of
from imagestore.containerd.upload import Upload, UploadPart
from imagestore.errors import PreconditionError
from imagestore.protos.containerd import content_pb2
from tests.support.collector import without_collector
from tests.support.containerd_client import (
    COMMIT,
    STAT,
    WRITE,
    Client,
    digest_of,
    message,
    offsets,
    refused,
)
from tests.support.patience import until
from tests.support.rpc_server import containerd_face

NOT_FOUND, INVALID = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
EXISTS, PRECONDITION = grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION
HELLO = digest_of(b"hello")


@pytest.mark.parametrize(
    ("namespace", "status"),
    [("", PRECONDITION), ("a b", INVALID), ("-a", INVALID), ("a..b", INVALID), ("a/b", INVALID), ("a" * 77, INVALID)],
)
def test_a_namespace_is_required_and_well_formed(client: Client, namespace: str, status: grpc.StatusCode) -> None:
    other = client.within(namespace)
    with refused(status, "namespace"):
        other.info(HELLO)
    with refused(status, "namespace"):
        other.digests()
    with refused(status, "namespace"):
        other.ingest(b"hello")
    with refused(status, "namespace"):
        other.read(HELLO)


def test_a_single_commit_is_a_whole_upload(client: Client) -> None:
    (answer, again) = client.write(message(COMMIT, "r", data=b"hello", labels={"a": "b"}))
    assert (answer.offset, answer.digest, answer.action) == (5, HELLO, COMMIT)
    assert again == answer, "the last answer comes twice, as from containerd"
    info = client.info(HELLO)
    assert (info.size, dict(info.labels)) == (5, {"a": "b"})
    assert client.bytes_of(HELLO) == b"hello"
    assert client.statuses() == []
    with refused(NOT_FOUND):
        client.status("r")


def test_every_answer_has_offset_and_digest_and_repeats_what_stat_said(client: Client) -> None:
    answers = client.write(
        message(STAT, "r", total=10),
        message(WRITE, data=b"hel"),
        message(WRITE, data=b"lo", offset=3, total=5),
        message(COMMIT, offset=5),
    )
    assert offsets(answers) == [0, 3, 5, 5, 5]
    assert [each.digest for each in answers] == [digest_of(part) for part in (b"", b"hel", *[b"hello"] * 3)]
    assert {each.total for each in answers} == {10}, "a later total counts and does not show"
    assert len({each.started_at.ToNanoseconds() for each in answers}) == 1


def test_a_stream_that_ends_without_commit_leaves_the_ingest_to_be_continued(client: Client) -> None:
    answers = client.write(message(WRITE, "r", data=b"hel", total=5, expected=HELLO))
    assert offsets(answers) == [3, 3]
    status = client.status("r")
    assert (status.ref, status.offset, status.total, status.expected) == ("r", 3, 5, HELLO)
    assert client.statuses() == ["r"]
    assert client.statuses("ref==x") == []
    assert client.within("other").statuses() == []
    answers = client.write(message(STAT, "r"), message(COMMIT, data=b"lo", offset=3))
    assert answers[0].offset == 3
    assert answers[0].digest == digest_of(b"hel")
    assert client.bytes_of(HELLO) == b"hello"


def test_the_ingests_folder_is_containerds(client: Client, store: ImageStore) -> None:
    client.write(message(WRITE, "ing2", data=b"abc", total=10))
    folder = (store.root / "content") / "ingest" / hashlib.sha256(b"default/1/ing2").hexdigest()
    assert (folder / "ref").read_text() == "default/1/ing2"
    assert (folder / "total").read_text() == "10"


@pytest.mark.parametrize("action", [WRITE, COMMIT])
def test_offset_zero_while_bytes_are_there_throws_them_away(
    client: Client, action: content_pb2.WriteAction.ValueType
) -> None:
    client.write(message(WRITE, "r", data=b"wrong"))
    answers = client.write(message(action, "r", data=b"hello"))
    assert answers[0].digest == HELLO
    assert answers[0].offset == 5


def test_a_commit_without_its_offset_destroys_the_data(client: Client) -> None:
    with refused(PRECONDITION, "failed size validation: 0 != 5"):
        client.write(message(WRITE, "r", data=b"hello"), message(COMMIT, total=5))
    assert client.status("r").offset == 0


@pytest.mark.parametrize("offset", [1, 4, 6, 2**62])
def test_any_other_offset_than_the_end_is_out_of_range(client: Client, offset: int) -> None:
    client.write(message(WRITE, "r", data=b"hello"))
    with refused(grpc.StatusCode.OUT_OF_RANGE, "expected offset 5"):
        client.write(message(WRITE, "r", data=b"x", offset=offset))
    assert client.status("r").offset == 5


def test_a_failed_commit_keeps_the_bytes_for_the_right_one(client: Client) -> None:
    client.write(message(WRITE, "r", data=b"hello"))
    with refused(PRECONDITION, "failed size validation: 5 != 9"):
        client.write(message(COMMIT, "r", offset=5, total=9))
    with refused(PRECONDITION, "unexpected commit digest"):
        client.write(message(COMMIT, "r", offset=5, expected=digest_of(b"other")))
    assert client.status("r").offset == 5
    answers = client.write(message(COMMIT, "r", offset=5, total=5, expected=HELLO))
    assert answers[-1].digest == HELLO
    assert client.digests() == [HELLO]


def test_a_total_that_comes_late_and_is_too_small_costs_no_byte(client: Client) -> None:
    client.write(message(WRITE, "r", data=b"x" * 1500))
    with refused(grpc.StatusCode.FAILED_PRECONDITION):
        client.write(message(COMMIT, "r", offset=1500, total=3))
    assert client.status("r").offset == 1500
    client.write(message(COMMIT, "r", offset=1500, total=1500))


def test_a_second_writer_is_refused_while_the_first_goes_on(client: Client) -> None:
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        def messages() -> Iterator[content_pb2.WriteContentRequest]:
            yield message(WRITE, "r", data=b"hel")
            entered.set()
            leave.wait(60)

        list(client.content.Write(messages(), metadata=client.headers))

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert entered.wait(60)
        while not client.statuses():
            pass
        with refused(grpc.StatusCode.UNAVAILABLE, "locked"):
            client.write(message(STAT, "r"))
        with refused(grpc.StatusCode.UNAVAILABLE, "going on"):
            client.abort("r")
        assert client.ingest(b"other", ref="r2") == digest_of(b"other")
    finally:
        leave.set()
        thread.join()
    assert client.write(message(STAT, "r"))[0].offset == 3


def test_a_client_that_goes_away_lets_go_of_its_ingest(client: Client) -> None:
    leave = threading.Event()

    def messages() -> Iterator[content_pb2.WriteContentRequest]:
        yield message(WRITE, "r", data=b"hel")
        leave.wait(60)

    stream = client.content.Write(messages(), metadata=client.headers)
    assert next(iter(stream)).offset == 3
    stream.cancel()
    leave.set()
    for _ in range(1000):
        try:
            assert client.write(message(STAT, "r"))[0].offset == 3
            return
        except grpc.RpcError:
            continue
    raise AssertionError("the ingest stayed locked")


def test_a_write_that_is_closed_before_its_first_message_is_worked_on_locks_nothing(store: ImageStore) -> None:
    # The caller went away while the message waited for a thread, and the one that closes came first.
    gone = Upload(content_view_of("default"), "")
    gone.close()
    with pytest.raises(PreconditionError):
        gone.open(store, UploadPart("r"))
    next_one = Upload(content_view_of("default"), "")
    next_one.open(store, UploadPart("r"))
    next_one.close()


@pytest.mark.parametrize(
    "first",
    [message(STAT), message(WRITE, data=b"x"), message(STAT, "r", expected="nonsense"), message(STAT, "r", total=-1)],
)
def test_a_first_message_that_makes_no_sense_is_refused(client: Client, first: content_pb2.WriteContentRequest) -> None:
    with refused(INVALID):
        client.write(first)
    assert client.statuses() == []


def test_content_that_the_namespace_has_ends_a_write_and_its_ingest(client: Client) -> None:
    client.ingest(b"hello")
    with refused(EXISTS):
        client.write(message(STAT, "a", expected=HELLO))
    with refused(EXISTS):
        client.write(message(WRITE, "b", data=b"hel"), message(WRITE, data=b"lo", offset=3, expected=HELLO))
    with refused(EXISTS):
        client.ingest(b"hello", ref="c")
    assert client.statuses() == []


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_other_digest_algorithms_also_when_named_only_at_the_commit(client: Client, algorithm: str) -> None:
    expected = digest_of(b"hello", algorithm)
    assert client.write(message(STAT, "a", expected=expected))[0].digest == digest_of(b"", algorithm)
    client.write(message(WRITE, "b", data=b"hello"))
    assert client.write(message(COMMIT, "b", offset=5, expected=expected))[-1].digest == expected
    assert client.bytes_of(expected) == b"hello"


def test_an_empty_commit_is_the_empty_blob(client: Client) -> None:
    assert client.write(message(COMMIT, "r"))[-1].digest == digest_of(b"")
    assert client.bytes_of(digest_of(b"")) == b""
    assert client.info(digest_of(b"")).size == 0


def test_ingests_and_content_survive_the_server(store: ImageStore, tmp_path: Path) -> None:
    with containerd_face(store, tmp_path / "a") as channel:
        Client(channel).write(message(WRITE, "r", data=b"hel", total=5))
        Client(channel).ingest(b"kept", ref="k", labels={"containerd.io/gc.root": "x"})
    again = ImageStore(tmp_path / "store", host=platforms.parse("linux/amd64"))
    again.collect_garbage()
    with containerd_face(again, tmp_path / "b") as channel:
        client = Client(channel)
        assert client.write(message(STAT, "r"))[0].offset == 3
        assert client.bytes_of(digest_of(b"kept")) == b"kept"


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [
        (0, 0, b"hello"),
        (0, -1, b"hello"),
        (-3, 0, b"hello"),
        (2, 0, b"llo"),
        (1, 2, b"el"),
        (3, 99, b"lo"),
        (5, 0, b""),
    ],
)
def test_reading_a_part(client: Client, offset: int, size: int, expected: bytes) -> None:
    client.ingest(b"hello")
    answers = client.read(HELLO, offset, size)
    assert b"".join(each.data for each in answers) == expected
    assert [each.offset for each in answers] == ([0] if expected else []), "counted from where the request begins"


def test_reading_behind_the_end_or_what_is_not_there(client: Client) -> None:
    client.ingest(b"hello")
    with refused(grpc.StatusCode.OUT_OF_RANGE):
        client.read(HELLO, 6)
    with refused(NOT_FOUND):
        client.read(digest_of(b"nothing"))
    with refused(INVALID):
        client.read("sha256:nonsense")
    with refused(INVALID):
        client.info("../../etc/passwd")


@pytest.mark.parametrize("readable", [0, 1])
def test_what_the_disk_cannot_read_is_damage(client: Client, monkeypatch: pytest.MonkeyPatch, readable: int) -> None:
    digest, reads, pread = client.ingest(bytes(2 << 20)), list[int](), os.pread

    def failing(descriptor: int, length: int, position: int) -> bytes:
        reads.append(position)
        if len(reads) > readable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, length, position)

    monkeypatch.setattr(content, "os", SimpleNamespace(pread=failing, fstat=os.fstat))
    with refused(grpc.StatusCode.DATA_LOSS, f"content {digest}: the disk can't read it"):
        client.read(digest)
    assert len(reads) == readable + 1


def test_a_message_carries_at_most_a_mebibyte(client: Client) -> None:
    data = bytes(range(256)) * 4096 * 2 + b"rest"
    digest = client.ingest(data)
    answers = client.read(digest)
    assert [(each.offset, len(each.data)) for each in answers] == [(0, 2**20), (2**20, 2**20), (2**21, 4)]
    assert b"".join(each.data for each in answers) == data


def test_a_refused_write_leaves_no_message_to_the_garbage_collector(client: Client) -> None:
    client.ingest(b"hello")
    with without_collector():
        for _ in range(3):
            with refused(EXISTS):
                client.ingest(b"hello")
            with refused(PRECONDITION):
                client.write(message(COMMIT, "r2", data=b"hello", total=3))
        until(lambda: not any(isinstance(each, UploadPart) for each in gc.get_objects()), "the messages are gone")


def test_a_piece_that_waits_for_its_reader_is_held_by_nobody_else(store: ImageStore) -> None:
    digest = Digest.of(b"hello")
    with store.content.writer("r", expected=digest, total=5, cancel=CancelToken()) as writer:
        writer.write(b"hello")
        writer.commit(digest, 5)
    context: Any = SimpleNamespace(invocation_metadata=lambda: (("containerd-namespace", "k8s.io"),))
    workers: Any = SimpleNamespace(transfer=transfer_on(store))
    service = content.ContentService(workers)

    async def run() -> None:
        pieces: Any = service.Read(content_pb2.ReadContentRequest(digest=HELLO), context)
        piece = await anext(pieces)
        assert piece.data == b"hello"
        assert sys.getrefcount(piece) == 2  # ours, and the argument
        await pieces.aclose()

    asyncio.run(run())


def transfer_on(store: ImageStore) -> Callable[[Callable[[ImageStore, CancelToken], object]], Awaitable[object]]:
    async def transfer(work: Callable[[ImageStore, CancelToken], object]) -> object:
        return work(store, CancelToken())

    return transfer


def test_lists_come_in_hundreds_and_honour_filters(client: Client, store: ImageStore) -> None:
    digests = sorted(client.ingest(b"%d" % number, ref=str(number)) for number in range(101))
    found = list(client.content.List(content_pb2.ListContentRequest(), metadata=client.headers))
    assert [len(each.info) for each in found] == [100, 1]
    assert client.digests() == digests
    client.label(digests[7], {"x": "y"}, "labels.x")
    assert client.digests("labels.x==y") == [digests[7]]
    assert client.digests(f"digest=={digests[3]}", "labels.x") == [digests[3], digests[7]]
    assert client.digests("size==1") == []
    with refused(INVALID, ">>>>"):
        client.digests("labels.")


def test_labels_are_replaced_whole_or_one_by_one(client: Client) -> None:
    client.ingest(b"hello", labels={"a": "1", "b": "2"})
    assert client.label(HELLO, {"c": "3"}, "labels.c") == {"a": "1", "b": "2", "c": "3"}
    assert client.label(HELLO, {"c": ""}, "labels.c", "labels.a") == {"b": "2"}
    assert client.label(HELLO, {"d.e/f": "4"}, "labels.d.e/f") == {"b": "2", "d.e/f": "4"}
    assert client.label(HELLO, {"z": "1"}, "labels") == {"z": "1"}
    assert client.label(HELLO, {"y": "1"}) == {"y": "1"}
    assert client.info(HELLO).updated_at.ToNanoseconds() > client.info(HELLO).created_at.ToNanoseconds()
    for path in ("size", "labels.", "digest", "label"):
        with refused(INVALID, "field mask"):
            client.label(HELLO, {}, path)
    with refused(INVALID, "4096"):
        client.label(HELLO, {"k": "v" * 4096})
    with refused(NOT_FOUND):
        client.label(digest_of(b"nothing"), {})


def test_deleting_and_aborting_what_is_not_there_is_not_found(client: Client) -> None:
    for work in (lambda: client.delete(HELLO), lambda: client.abort("r"), lambda: client.status("r")):
        with refused(NOT_FOUND):
            work()
    client.write(message(WRITE, "r", data=b"x"))
    client.abort("r")
    assert client.statuses() == []


_MESSAGES = st.lists(
    st.tuples(st.sampled_from([STAT, WRITE, COMMIT]), st.binary(max_size=3), st.sampled_from([0, 0, 1, 2, 3, 4])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(_MESSAGES)
def test_any_order_of_messages_leaves_what_the_model_says(
    machine: Client, sequence: list[tuple[content_pb2.WriteAction.ValueType, bytes, int]]
) -> None:
    ref = hashlib.sha256(repr(sequence).encode()).hexdigest()
    data, is_over, committed = b"", False, False
    for action, chunk, offset in sequence:
        if is_over or action == STAT:
            continue
        if offset and offset != len(data):
            is_over = True
            continue
        data = (data if offset else b"") + chunk
        is_over = committed = action == COMMIT
    requests = [message(action, ref, data=chunk, offset=offset) for action, chunk, offset in sequence]
    try:
        machine.write(*requests)
    except grpc.RpcError:
        assert is_over
    if committed:
        assert machine.bytes_of(digest_of(data)) == data
        assert machine.statuses(f"ref=={ref}") == []
    else:
        assert machine.status(ref).offset == len(data)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One server for all examples; content of one may be there for the next."""
    folder = tmp_path_factory.mktemp("machine")
    store = ImageStore(folder / "store", host=platforms.parse("linux/amd64"))
    with containerd_face(store, folder / "s") as channel:
        yield Client(channel)
