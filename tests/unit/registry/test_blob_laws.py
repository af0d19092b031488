"""Whatever a host does, a blob is exactly as long as its descriptor says, or the error is typed, and it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagestore import Descriptor, Digest, Reference, TransferPolicy
from imagestore.errors import ImageStoreError
from tests.support.streams import drain, pieces

REFERENCE = Reference.parse("registry.example/team/app:1")
CONTENT = bytes(range(64))
LAYER = Descriptor("application/octet-stream", Digest.of(CONTENT), len(CONTENT))
BREAKS = (httpx.ReadError("reset"), httpx.ReadTimeout("stall"), httpx.RemoteProtocolError("cut"))


class Body(httpx.SyncByteStream):
    def __init__(self, pieces: list[bytes], breaks: Exception | None) -> None:
        self.pieces, self.breaks = pieces, breaks

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces
        if self.breaks is not None:
            raise self.breaks


numbers = st.integers(0, 70)
policies = st.builds(
    TransferPolicy,
    parallel_ranges=st.sampled_from([1, 2, 4]),
    range_bytes=st.sampled_from([7, 16, 40]),
    least_bytes_for_ranges=st.just(20),
)
honest = st.tuples(st.just("honest"), numbers, numbers, st.sampled_from([None, *BREAKS]))
lying = st.tuples(
    st.just("lying"),
    st.sampled_from([200, 206, 416, 404, 401, 403, 429, 500, 503, 302]),
    st.fixed_dictionaries(
        {},
        optional={
            "Content-Range": st.one_of(
                st.builds("bytes {}-{}/{}".format, numbers, numbers, st.one_of(numbers, st.just("*"))),
                st.text("bytes 0-9/*", max_size=12),
            ),
            "Content-Length": st.builds(str, numbers),
            "Retry-After": st.sampled_from(["1", "-1", "999999", "soon"]),
            "Location": st.sampled_from(["/x", "https://evil.example/", "http://evil.example/", "::", ""]),
            "Content-Type": st.sampled_from(["multipart/byteranges", "text/html"]),
        },
    ),
    st.lists(st.binary(max_size=40), max_size=4),
    st.sampled_from([None, *BREAKS]),
)
raising = st.tuples(st.just("raising"), st.sampled_from([*BREAKS, httpx.ConnectError("refused"), OSError("down")]))


def answer(step: Any, request: httpx.Request) -> httpx.Response:
    if step[0] == "raising":
        raise step[1]
    if step[0] == "lying":
        return httpx.Response(step[1], headers=step[2], stream=Body(step[3], step[4]))
    _, cut, width, breaks = step
    asked = request.headers.get("Range")
    start, _, last = asked[6:].partition("-") if asked else ("0", "", "")
    first, end = int(start), int(last) + 1 if last else len(CONTENT)
    body = CONTENT[first : min(first + cut, end)]
    pieces = [body[place : place + max(1, width)] for place in range(0, len(body), max(1, width))]
    is_whole = first + cut >= end
    stream = Body(pieces, None if is_whole else breaks)
    if not asked:
        return httpx.Response(200, stream=stream)
    fields = {"Content-Range": f"bytes {first}-{end - 1}/{len(CONTENT)}"}
    return httpx.Response(206, headers=fields, stream=stream)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.one_of(honest, lying, raising), max_size=6),
    rest=st.one_of(honest, lying, raising),
    offset=st.integers(0, 64),
    policy=policies,
)
def test_length_is_right_or_the_error_typed(
    make_bench: Callable[..., Any], steps: list[Any], rest: Any, offset: int, policy: TransferPolicy
) -> None:
    left, asked = list(steps), []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return answer(left.pop(0) if left else rest, request)

    bench = make_bench(handle, policy=policy)
    received = b""
    try:
        with bench.client.blob(REFERENCE, LAYER, offset=offset, cancel=bench.cancel) as stream:
            for piece in pieces(stream):
                received += piece
            assert len(received) == len(CONTENT) - stream.start
    except ImageStoreError:
        pass
    assert len(received) <= len(CONTENT)
    # Each try has at most two requests and five redirects, and the retries are counted for all parts together.
    assert len(asked) <= 900


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.one_of(st.tuples(st.just("honest"), numbers, numbers, st.sampled_from(BREAKS))), max_size=8),
    policy=policies,
)
def test_an_honest_but_flaky_host_gives_exactly_the_content_or_gives_up(
    make_bench: Callable[..., Any], steps: list[Any], policy: TransferPolicy
) -> None:
    left = list(steps)

    def handle(request: httpx.Request) -> httpx.Response:
        return answer(left.pop(0) if left else ("honest", 64, 64, None), request)

    bench = make_bench(handle, policy=policy)
    try:
        with bench.client.blob(REFERENCE, LAYER, cancel=bench.cancel) as stream:
            received = drain(stream)
    except ImageStoreError:
        assert len(steps) >= 5
    else:
        assert received == CONTENT
