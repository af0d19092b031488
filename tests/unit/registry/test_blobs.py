"""blob(): one clean byte sequence whatever the connection does; the table of answers to Range."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from imagestore import CancelToken, Descriptor, Digest, Reference, TransferPolicy
from imagestore.errors import (
    OperationCancelledError,
    ProtocolError,
    ReferenceNotFoundError,
    RegistryError,
    RegistryUnavailableError,
    SizeMismatchError,
)
from imagestore.events import Waiting
from tests.support.streams import drain, pieces
from tests.unit.registry.wire import Body

if TYPE_CHECKING:
    from typing import TypeAlias

    Answer: TypeAlias = httpx.Response | Exception

REFERENCE = Reference.parse("registry.example/team/app:1")
CONTENT = bytes(range(256)) * 4
SIZE = len(CONTENT)
LAYER = Descriptor("application/vnd.oci.image.layer.v1.tar+gzip", Digest.of(CONTENT), SIZE)


RESET = httpx.ReadError("connection reset")


def whole(*pieces: bytes | Exception) -> httpx.Response:
    return httpx.Response(200, headers={"Content-Length": str(SIZE)}, stream=Body(*(pieces or (CONTENT,))))


def part(
    first: int, *pieces: bytes | Exception, last: int = SIZE - 1, total: str = str(SIZE), media_type: str = ""
) -> httpx.Response:
    fields = {"Content-Range": f"bytes {first}-{last}/{total}", "Content-Type": media_type}
    return httpx.Response(206, headers=fields, stream=Body(*(pieces or (CONTENT[first : last + 1],))))


class Script:
    """Answers in order; the last one again and again if it is a function."""

    def __init__(self, *answers: httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]) -> None:
        self.answers = list(answers)
        self.ranges: list[str | None] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.ranges.append(request.headers.get("Range"))
        answer = self.answers[0] if callable(self.answers[0]) else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)


MakeBench = Callable[..., Any]


def read(bench: Any, offset: int = 0) -> tuple[int, bytes]:
    with bench.client.blob(REFERENCE, LAYER, offset=offset, cancel=bench.cancel) as stream:
        return stream.start, drain(stream)


def test_a_blob_comes_whole_and_without_range(make_bench: MakeBench) -> None:
    script = Script(whole(CONTENT[:100], CONTENT[100:]))
    bench = make_bench(script)
    assert read(bench) == (0, CONTENT)
    assert script.ranges == [None]
    assert bench.time.slept == []


@pytest.mark.parametrize(
    ("answers", "start"),
    [
        ([part(300)], 300),
        ([part(300, total="*")], 300),
        ([part(300, last=SIZE - 1)], 300),
        # The server ignores Range.
        ([whole()], 0),
        # Answers that can't be used: asked again without Range.
        ([part(301), whole()], 0),
        ([part(0), whole()], 0),
        ([part(300, total="4096"), whole()], 0),
        ([part(300, last=SIZE), whole()], 0),
        ([httpx.Response(206, stream=Body(CONTENT[300:])), whole()], 0),
        ([part(300, media_type="multipart/byteranges; boundary=x"), whole()], 0),
        ([httpx.Response(416, headers={"Content-Range": f"bytes */{SIZE}"}), whole()], 0),
        ([httpx.Response(416), whole()], 0),
        ([httpx.Response(412), whole()], 0),
    ],
)
def test_an_offset_is_served_from_there_or_from_the_start(
    make_bench: MakeBench, answers: list[httpx.Response], start: int
) -> None:
    # Streams are read once, so each case needs fresh ones.
    fresh = [httpx.Response(one.status_code, headers=one.headers, stream=one.stream) for one in answers]
    script = Script(*fresh)
    assert read(make_bench(script), offset=300) == (start, CONTENT[start:])
    assert script.ranges == ["bytes=300-", None][: len(answers)]


class Closing(Body):
    """One that notes that it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("status", [416, 206, 501])
def test_an_answer_that_cannot_be_used_is_closed_before_the_next(make_bench: MakeBench, status: int) -> None:
    odd, was_closed = Closing(b"no"), []

    def then(request: httpx.Request) -> httpx.Response:
        if "Range" in request.headers:
            return httpx.Response(status, stream=odd)
        was_closed.append(odd.is_closed)
        return whole()

    assert read(make_bench(Script(then)), offset=300) == (0, CONTENT)
    assert was_closed == [True]


def test_an_answer_of_another_size_is_closed(make_bench: MakeBench) -> None:
    other = Closing(b"x" * 10)
    bench = make_bench(Script(httpx.Response(200, headers={"Content-Length": "10"}, stream=other)))
    with pytest.raises(SizeMismatchError) as caught:
        read(bench)
    assert other.is_closed
    assert (caught.value.expected, caught.value.actual) == (SIZE, 10)


def test_an_outage_is_waited_for_with_what_came_before(make_bench: MakeBench) -> None:
    """To ask without Range would throw it away."""
    script = Script(whole(CONTENT[:500], RESET), httpx.Response(503), httpx.Response(503), part(500))
    bench = make_bench(script)
    assert read(bench) == (0, CONTENT)
    assert script.ranges == [None] + ["bytes=500-"] * 3
    assert len(bench.time.slept) == 3


@pytest.mark.parametrize("offset", [0, 500])
@pytest.mark.parametrize(("status", "is_asked_without"), [(503, False), (502, False), (500, True)])
def test_only_a_host_that_fails_at_a_range_is_asked_for_the_whole(
    make_bench: MakeBench, offset: int, status: int, is_asked_without: bool
) -> None:
    script = Script(lambda request: httpx.Response(status))
    with pytest.raises(RegistryUnavailableError):
        read(make_bench(script, policy=TransferPolicy(attempts=2)), offset)
    ranged, bare = script.ranges.count("bytes=500-"), script.ranges.count(None)
    assert (ranged, bare) == ((0, 2) if not offset else (2, 2 if is_asked_without else 0))


@pytest.mark.parametrize("status", [400, 403, 405, 413, 422])
def test_a_host_that_refuses_ranges_is_asked_for_the_whole_once(make_bench: MakeBench, status: int) -> None:
    script = Script(whole(CONTENT[:500], RESET), httpx.Response(status), whole())
    assert read(make_bench(script)) == (0, CONTENT)
    assert script.ranges == [None, "bytes=500-", None]
    script = Script(whole(CONTENT[:500], RESET), *[httpx.Response(status)] * 2)
    with pytest.raises(RegistryError):
        read(make_bench(script))
    assert script.ranges == [None, "bytes=500-", None]


@pytest.mark.parametrize("status", [404, 410])
def test_a_blob_that_was_deleted_during_the_transfer_is_not_requested_again(make_bench: MakeBench, status: int) -> None:
    script = Script(whole(CONTENT[:500], RESET), httpx.Response(status))
    with pytest.raises(RegistryError):
        read(make_bench(script))
    assert script.ranges == [None, "bytes=500-"]


def test_a_complete_blob_needs_no_request(make_bench: MakeBench) -> None:
    assert read(make_bench(Script()), offset=SIZE) == (SIZE, b"")


def test_an_empty_blob_is_still_asked_for(make_bench: MakeBench) -> None:
    empty = Descriptor("application/octet-stream", Digest.of(b""), 0)
    bench = make_bench(Script(httpx.Response(200, headers={"Content-Length": "0"}), httpx.Response(404)))
    with bench.client.blob(REFERENCE, empty, cancel=bench.cancel) as stream:
        assert drain(stream) == b""
    with pytest.raises(ReferenceNotFoundError):
        bench.client.blob(REFERENCE, empty, cancel=bench.cancel)


@pytest.mark.parametrize("offset", [-1, SIZE + 1])
def test_an_offset_outside_the_blob_is_a_callers_mistake(make_bench: MakeBench, offset: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        read(make_bench(Script()), offset=offset)


@pytest.mark.parametrize("cut", [0, 1, 512, SIZE - 1])
@pytest.mark.parametrize("breaks", [RESET, None, httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("cut")])
def test_a_broken_transfer_goes_on_where_it_stopped(make_bench: MakeBench, cut: int, breaks: Exception | None) -> None:
    first = [CONTENT[:cut]] if breaks is None else [CONTENT[:cut], breaks]
    resumed = part(cut) if cut else whole()
    script = Script(httpx.Response(200, stream=Body(*first)), resumed)
    bench = make_bench(script)
    assert read(bench) == (0, CONTENT)
    assert script.ranges == [None, f"bytes={cut}-" if cut else None]
    assert bench.time.slept == [0.1]
    assert [event for event in bench.events if isinstance(event, Waiting)]


def test_what_came_twice_is_dropped_when_the_host_ignores_range(make_bench: MakeBench) -> None:
    script = Script(whole(CONTENT[:500], RESET), whole(CONTENT[:499], CONTENT[499:600], CONTENT[600:]))
    assert read(make_bench(script)) == (0, CONTENT)


def test_a_host_that_ignores_range_may_not_waste_more_than_the_blobs_size(make_bench: MakeBench) -> None:
    def breaks_late(request: httpx.Request) -> httpx.Response:
        return whole(CONTENT[:700], RESET)

    script = Script(breaks_late)
    with pytest.raises(RegistryUnavailableError, match="ignores Range"):
        read(make_bench(script))
    assert len(script.ranges) == 3


def test_tries_without_progress_run_out(make_bench: MakeBench) -> None:
    script = Script(lambda request: whole(RESET))
    bench = make_bench(script)
    with pytest.raises(RegistryUnavailableError, match="connection reset"):
        read(bench)
    assert len(script.ranges) == 5
    assert bench.time.slept == [0.1, 0.2, 0.4, 0.8]


def test_progress_gives_new_tries(make_bench: MakeBench) -> None:
    def hundred_bytes(request: httpx.Request) -> httpx.Response:
        first = int(request.headers.get("Range", "bytes=0-")[6:-1])
        piece = CONTENT[first : first + 100]
        return part(first, piece, RESET) if first else whole(piece, RESET)

    bench = make_bench(Script(hundred_bytes), policy=TransferPolicy(attempts=2, progress_bytes=100))
    assert read(bench) == (0, CONTENT)


def test_the_operations_budget_ends_even_steady_progress(make_bench: MakeBench) -> None:
    def one_byte(request: httpx.Request) -> httpx.Response:
        first = int(request.headers.get("Range", "bytes=0-")[6:-1])
        piece = CONTENT[first : first + 1]
        return part(first, piece, RESET) if first else whole(piece, RESET)

    script = Script(one_byte)
    bench = make_bench(script, policy=TransferPolicy(progress_bytes=1, total_retries=7))
    with pytest.raises(RegistryUnavailableError):
        read(bench)
    assert len(script.ranges) == 8


def test_a_host_that_serves_in_parts_is_asked_for_the_next_without_waiting(make_bench: MakeBench) -> None:
    size = 200 * 1024
    content = CONTENT * (size // SIZE)
    layer = Descriptor("application/octet-stream", Digest.of(content), size)

    def parts(request: httpx.Request) -> httpx.Response:
        first = int(request.headers.get("Range", "bytes=0-")[6:-1])
        last = min(first + 64 * 1024, size) - 1
        fields = {"Content-Range": f"bytes {first}-{last}/{size}"}
        return httpx.Response(206, headers=fields, stream=Body(content[first : last + 1]))

    # Each part's place at the host is given back before the next is asked for.
    bench = make_bench(Script(parts), policy=TransferPolicy(connections_per_host=1))
    with bench.client.blob(REFERENCE, layer, offset=1, cancel=CancelToken(60)) as stream:
        assert drain(stream) == content[1:]
    assert bench.time.slept == []


def test_a_transfer_that_broke_far_on_is_waited_for(make_bench: MakeBench) -> None:
    """Only an answer's own end is no failure."""
    content = CONTENT * 200
    layer = Descriptor("application/octet-stream", Digest.of(content), len(content))

    def breaks(request: httpx.Request) -> httpx.Response:
        first = int(request.headers.get("Range", "bytes=0-")[6:-1])
        fields = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"}
        rest = [content[first:]] if first else [content[: 100 * 1024], RESET]
        return httpx.Response(206 if first else 200, headers=fields, stream=Body(*rest))

    bench = make_bench(Script(breaks))
    with bench.client.blob(REFERENCE, layer, cancel=bench.cancel) as stream:
        assert drain(stream) == content
    assert bench.time.slept == [0.1]


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, headers={"Content-Length": str(SIZE + 1)}),
        httpx.Response(200, headers={"Content-Length": str(SIZE - 1)}),
    ],
)
def test_another_announced_size_is_refused_before_reading(make_bench: MakeBench, answer: httpx.Response) -> None:
    with pytest.raises(SizeMismatchError):
        read(make_bench(Script(answer)))


def test_one_byte_too_many_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench(Script(httpx.Response(200, stream=Body(CONTENT, b"x"))))
    with pytest.raises(SizeMismatchError):
        read(bench)


def test_an_unrequested_partial_answer_is_refused(make_bench: MakeBench) -> None:
    with pytest.raises(ProtocolError, match="206"):
        read(make_bench(Script(part(0))))


def test_bytes_are_never_decoded(make_bench: MakeBench) -> None:
    answer = httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=Body(CONTENT))
    assert read(make_bench(Script(answer))) == (0, CONTENT)


def test_a_slow_reader_is_no_slow_host(make_bench: MakeBench) -> None:
    bench = make_bench(Script(whole(*(CONTENT[index : index + 1] for index in range(SIZE)))))
    received = b""
    with bench.client.blob(REFERENCE, LAYER, cancel=bench.cancel) as stream:
        for piece in pieces(stream):
            received += piece
            bench.time.seconds += 1000
    assert received == CONTENT


def test_cancelling_ends_a_transfer_at_the_next_piece(make_bench: MakeBench) -> None:
    bench = make_bench(Script(whole(CONTENT[:10], CONTENT[10:])))
    token = CancelToken()
    with bench.client.blob(REFERENCE, LAYER, cancel=token) as stream:
        coming = pieces(stream)
        next(coming)
        token.cancel("enough")
        with pytest.raises(OperationCancelledError, match="enough"):
            next(coming)
