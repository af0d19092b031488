"""Large blobs in parallel ranges: in order, exactly what was asked for, and one stream where a host can't."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest

from imagestore import CancelToken, Descriptor, Digest, Reference, TransferPolicy
from imagestore.errors import (
    AccessDeniedError,
    OperationCancelledError,
    RegistryUnavailableError,
    SizeMismatchError,
)
from imagestore.registry.client_factory import connect
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, layer
from imagestore.testing.faults import Drip, IgnoreRange, Reset
from tests.support.patience import until
from tests.support.streams import drain, pieces
from tests.unit.registry.wire import Body

REFERENCE = Reference.parse("registry.example/team/app:1")
PART = 1024
CONTENT = bytes(number * 7 % 251 for number in range(10 * PART + 17))
SIZE = len(CONTENT)
LAYER = Descriptor("application/octet-stream", Digest.of(CONTENT), SIZE)
POLICY = TransferPolicy(parallel_ranges=4, range_bytes=PART, least_bytes_for_ranges=2 * PART)
MakeBench = Callable[..., Any]


class Lazily(httpx.SyncByteStream):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self.pieces


class Host:
    """A host of one blob; ``special`` may answer instead, knowing first, end and which request this is."""

    def __init__(self, special: Callable[[int, int, int], httpx.Response | None] = lambda *_: None) -> None:
        self.special = special
        self.asked: list[str] = []
        self.lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        text = request.headers.get("Range", "")
        with self.lock:
            self.asked.append(text)
            number = len(self.asked)
        found = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", text)
        first = int(found[1]) if found else 0
        end = int(found[2]) + 1 if found and found[2] else SIZE
        answer = self.special(first, end, number)
        if answer is not None:
            return answer
        return partial(first, end) if found else httpx.Response(200, stream=Body(CONTENT))


def whole() -> httpx.Response:
    return httpx.Response(200, stream=Body(CONTENT))


def partial(first: int, end: int, *pieces: bytes | Exception) -> httpx.Response:
    fields = {"Content-Range": f"bytes {first}-{end - 1}/{SIZE}"}
    return httpx.Response(206, headers=fields, stream=Body(*(pieces or (CONTENT[first:end],))))


def read(bench: Any, offset: int = 0, cancel: CancelToken | None = None) -> tuple[int, bytes]:
    with bench.client.blob(REFERENCE, LAYER, offset=offset, cancel=cancel or CancelToken(60)) as stream:
        return stream.start, drain(stream)


@pytest.mark.parametrize("offset", [0, 1, PART, 5 * PART + 3])
def test_ranges_cover_the_blob_once_and_come_in_order(make_bench: MakeBench, offset: int) -> None:
    host = Host()
    assert read(make_bench(host, policy=POLICY), offset) == (offset, CONTENT[offset:])
    spans = sorted(
        (int(one), int(two) + 1 if two else SIZE) for one, two in re.findall(r"=(\d+)-(\d*)", str(host.asked))
    )
    assert spans[0][0] == offset
    assert spans[-1][1] == SIZE
    assert all(one[1] == two[0] for one, two in pairwise(spans))
    assert len(spans) == -(-(SIZE - offset) // PART)


def test_a_first_range_that_is_read_in_small_pieces_takes_no_more_connections(make_bench: MakeBench) -> None:
    go = threading.Event()

    def held(first: int, end: int, number: int) -> None:
        if first:
            go.wait(60)

    bench = make_bench(Host(held), policy=POLICY)
    with bench.client.blob(REFERENCE, LAYER, offset=0, cancel=CancelToken(60)) as stream:
        read_so_far = b"".join(next(pieces(stream, 16)) for _ in range(10))
        assert sum(thread.name == "imagestore-range" for thread in threading.enumerate()) == 3
        go.set()
        assert read_so_far + drain(stream) == CONTENT


def test_one_stream_to_the_end_forgets_parts_that_failed_before(make_bench: MakeBench) -> None:
    """The first stretch breaks, and its host knows no ranges any more."""

    def special(first: int, end: int, number: int) -> httpx.Response | None:
        if number == 1:
            return partial(first, end, httpx.ReadError("reset"))
        if first == 0:
            # Only once every part was refused, as its thread noted before it ended.
            until(
                lambda: "imagestore-range" not in {thread.name for thread in threading.enumerate()}, "no part is read"
            )
        return httpx.Response(200, stream=Body(CONTENT))

    assert read(make_bench(Host(special), policy=POLICY)) == (0, CONTENT)


@pytest.mark.parametrize("status", [500, 501])
def test_a_host_that_fails_at_every_range_gives_one_stream(make_bench: MakeBench, status: int) -> None:
    bench = make_bench(lambda request: httpx.Response(status) if "Range" in request.headers else whole(), policy=POLICY)
    assert read(bench) == (0, CONTENT)


def test_by_default_and_below_the_least_size_there_is_one_stream(make_bench: MakeBench) -> None:
    for policy in (TransferPolicy(), TransferPolicy(parallel_ranges=4, least_bytes_for_ranges=SIZE + 1)):
        host = Host()
        assert read(make_bench(host, policy=policy)) == (0, CONTENT)
        assert host.asked == [""]


@pytest.mark.parametrize(
    "unproven",
    [
        lambda first, end, number: httpx.Response(200, stream=Body(CONTENT)),
        lambda first, end, number: httpx.Response(416) if number == 1 else None,
        # Serves a range, but up to the end instead of the one asked for.
        lambda first, end, number: partial(first, SIZE),
        lambda first, end, number: (
            httpx.Response(206, stream=Body(CONTENT[first:end])) if number == 1 else None  # no Content-Range
        ),
        lambda first, end, number: partial(first + 1, end + 1) if number == 1 else None,
    ],
    ids=["whole", "416", "to the end", "unsaid", "shifted"],
)
def test_a_host_that_does_not_prove_ranges_is_read_in_one_stream(
    make_bench: MakeBench, unproven: Callable[[int, int, int], httpx.Response | None]
) -> None:
    host = Host(unproven)
    assert read(make_bench(host, policy=POLICY)) == (0, CONTENT)
    assert len(host.asked) <= 2


@pytest.mark.parametrize("when", [2, 4, 7])
@pytest.mark.parametrize("how", ["whole", "to the end", "416"])
def test_a_range_that_is_ignored_later_ends_in_one_stream_with_the_same_bytes(
    make_bench: MakeBench, when: int, how: str
) -> None:
    def forgets(first: int, end: int, number: int) -> httpx.Response | None:
        if number < when:
            return None
        if how == "416":
            return httpx.Response(416) if first else None
        return httpx.Response(200, stream=Body(CONTENT)) if how == "whole" else partial(first, SIZE)

    assert read(make_bench(Host(forgets), policy=POLICY)) == (0, CONTENT)


def test_what_is_received_twice_stays_within_the_waste_cap(make_bench: MakeBench) -> None:
    def forgets(first: int, end: int, number: int) -> httpx.Response | None:
        return httpx.Response(200, stream=Body(CONTENT)) if first >= 3 * PART or end == SIZE else None

    policy = TransferPolicy(parallel_ranges=4, range_bytes=PART, least_bytes_for_ranges=PART, wasted_share=0.1)
    with pytest.raises(RegistryUnavailableError, match="ignores Range"):
        read(make_bench(Host(forgets), policy=policy))


def test_parts_ahead_of_a_first_answer_that_turns_whole_count_as_waste(make_bench: MakeBench) -> None:
    ahead = threading.Event()

    def slow() -> Iterator[bytes]:
        yield CONTENT[:10]
        ahead.wait(60)
        raise httpx.ReadError("reset")

    def turns(first: int, end: int, number: int) -> httpx.Response | None:
        if number == 1:
            fields = {"Content-Range": f"bytes 0-{PART - 1}/{SIZE}"}
            return httpx.Response(206, headers=fields, stream=Lazily(slow()))
        if first < PART:
            return httpx.Response(200, stream=Body(CONTENT))
        if first == 8 * PART:
            # The last that fits the window; those before it have been asked for.
            threading.Timer(0.05, ahead.set).start()
        return None

    policy = TransferPolicy(parallel_ranges=4, range_bytes=PART, least_bytes_for_ranges=PART, wasted_share=0.5)
    with pytest.raises(RegistryUnavailableError, match="ignores Range"):
        read(make_bench(Host(turns), policy=policy))


@pytest.mark.parametrize("cut", [0, 1, PART - 1])
def test_a_part_that_breaks_is_resumed_inside_itself(make_bench: MakeBench, cut: int) -> None:
    broken: set[int] = set()

    def breaks(first: int, end: int, number: int) -> httpx.Response | None:
        if first % PART or first in broken:
            return None
        broken.add(first)
        return partial(first, end, CONTENT[first : first + cut], httpx.ReadError("reset"))

    host = Host(breaks)
    assert read(make_bench(host, policy=POLICY)) == (0, CONTENT)
    if cut:
        assert f"bytes={PART + cut}-{2 * PART - 1}" in host.asked


def test_a_range_with_more_bytes_than_it_announced_is_an_error(make_bench: MakeBench) -> None:
    def generous(first: int, end: int, number: int) -> httpx.Response | None:
        return partial(first, end, CONTENT[first : end + 1]) if first == 2 * PART else None

    with pytest.raises(SizeMismatchError, match=f"bytes {2 * PART} to {3 * PART}"):
        read(make_bench(Host(generous), policy=POLICY))


def test_a_last_range_with_more_bytes_than_it_announced_is_an_error(make_bench: MakeBench) -> None:
    last = 10 * PART

    def generous(first: int, end: int, number: int) -> httpx.Response | None:
        return partial(first, end, CONTENT[first:end], b"x") if first == last else None

    with pytest.raises(SizeMismatchError):
        read(make_bench(Host(generous), policy=POLICY))


def test_a_refusal_comes_after_the_bytes_before_it(make_bench: MakeBench) -> None:
    def denies(first: int, end: int, number: int) -> httpx.Response | None:
        return httpx.Response(403) if first == 5 * PART else None

    bench = make_bench(Host(denies), policy=POLICY)
    received: list[bytes] = []
    with bench.client.blob(REFERENCE, LAYER, cancel=CancelToken(60)) as stream, pytest.raises(AccessDeniedError):
        received.extend(pieces(stream))
    assert b"".join(received) == CONTENT[: 5 * PART]


def test_a_refusal_of_the_last_part_is_believed_too(make_bench: MakeBench) -> None:
    """Its Range field has no end, as that of a transfer that goes on has none; the whole blob would be of no use."""
    host = Host(lambda first, end, number: httpx.Response(403) if first and end == SIZE else None)
    bench = make_bench(host, policy=POLICY)
    with bench.client.blob(REFERENCE, LAYER, cancel=CancelToken(60)) as stream, pytest.raises(AccessDeniedError):
        drain(stream)
    assert "" not in host.asked[1:]


def test_parts_ahead_of_their_turn_are_bounded(make_bench: MakeBench) -> None:
    host = Host()
    bench = make_bench(host, policy=POLICY)
    with bench.client.blob(REFERENCE, LAYER, cancel=CancelToken(60)) as stream:
        next(pieces(stream))
        # The first part, and a window of two for each connection.
        until(lambda: len(host.asked) >= 1 + 2 * 4, "the window is full")
        time.sleep(0.1)
        assert len(host.asked) == 1 + 2 * 4


def test_closing_early_leaves_no_thread_behind(make_bench: MakeBench) -> None:
    bench = make_bench(Host(), policy=POLICY)
    with bench.client.blob(REFERENCE, LAYER, cancel=CancelToken(60)) as stream:
        next(pieces(stream))
    assert "imagestore-range" not in {thread.name for thread in threading.enumerate()}


def forgetful(first: int, end: int, number: int) -> httpx.Response | None:
    """Serves the first stretch, and knows no ranges then."""
    return whole() if first else None


@pytest.mark.parametrize("special", [forgetful, lambda *_: None])
def test_a_blob_that_is_given_up_gives_back_every_place_at_its_host(
    make_bench: MakeBench, special: Callable[[int, int, int], httpx.Response | None]
) -> None:
    policy = replace(POLICY, connections_per_host=1)
    bench = make_bench(Host(special), policy=policy)
    for wanted in (10, PART + 10, 3 * PART):
        with bench.client.blob(REFERENCE, LAYER, cancel=CancelToken(60)) as stream:
            received = b""
            while len(received) < wanted:
                received += next(pieces(stream, 512))
        assert CONTENT.startswith(received)
    assert read(bench) == (0, CONTENT)


def test_ranges_that_were_ignored_give_back_their_places(make_bench: MakeBench) -> None:
    bench = make_bench(Host(forgetful), policy=replace(POLICY, connections_per_host=2))
    for _ in range(4):
        assert read(bench) == (0, CONTENT)


def test_closing_early_waits_for_no_slow_part(make_bench: MakeBench) -> None:
    whole_parts: list[bool] = []

    def drips() -> Iterator[bytes]:
        for _ in range(PART):
            time.sleep(0.05)
            yield b"x"
        whole_parts.append(True)

    def slow(first: int, end: int, number: int) -> httpx.Response | None:
        fields = {"Content-Range": f"bytes {first}-{end - 1}/{SIZE}"}
        return httpx.Response(206, headers=fields, stream=Lazily(drips())) if first else None

    bench = make_bench(Host(slow), policy=POLICY)
    with bench.client.blob(REFERENCE, LAYER, cancel=CancelToken(60)) as stream:
        next(pieces(stream))
    assert not whole_parts


def test_cancelling_ends_all_parts(make_bench: MakeBench) -> None:
    cancel = CancelToken()
    bench = make_bench(Host(), policy=POLICY)
    with bench.client.blob(REFERENCE, LAYER, cancel=cancel) as stream:
        coming = pieces(stream)
        next(coming)
        cancel.cancel("enough")
        with pytest.raises(OperationCancelledError, match="enough"):
            list(coming)


def test_one_place_at_the_host_is_enough(make_bench: MakeBench) -> None:
    policy = TransferPolicy(parallel_ranges=4, range_bytes=PART, least_bytes_for_ranges=PART, connections_per_host=1)
    assert read(make_bench(Host(), policy=policy)) == (0, CONTENT)


class TestOnTheWire:
    """Over loopback, each connection throttled."""

    SIZE = 1 << 20

    def pull(self, *, ranges: int, faults: tuple[FaultRule, ...]) -> tuple[int, int]:
        """How many requests ran at once at most, and how many bytes were sent."""
        big = layer("big", size=self.SIZE, compression="none")
        image = build_image("linux/amd64", layers=[big])
        part = image.layers[0]
        policy = TransferPolicy(parallel_ranges=ranges, range_bytes=1 << 16, least_bytes_for_ranges=1 << 17)
        with (
            RegistryServer({"registry.example/big:1": image}, faults=list(faults)) as server,
            connect(policy=policy) as client,
        ):
            reference = Reference.parse(server.server.reference("registry.example/big:1"))
            with client.blob(reference, part, cancel=CancelToken(120)) as stream:
                received = drain(stream)
            assert Digest.of(received) == part.digest
            asked = server.ledger.select(digest=part.digest)
            spans = [(one.started, one.finished or math.inf) for one in asked]
            at_once = max(sum(start <= began < end for start, end in spans) for began, _ in spans)
            return at_once, server.ledger.bytes_sent(part.digest)

    def test_four_ranges_run_side_by_side_on_connections_that_are_slow(self) -> None:
        throttled = FaultRule(Drip(bytes_per_second=1.0 * (1 << 20)), Where(kind="blob"), times=0)
        alone, _ = self.pull(ranges=1, faults=(throttled,))
        together, sent = self.pull(ranges=4, faults=(throttled,))
        assert (alone, together) == (1, 4)
        assert sent <= 1.05 * self.SIZE

    # What a server that ignores Range had sent before we hung up counts there, whether it was received or not.
    @pytest.mark.parametrize(
        ("fault", "most"), [(Reset(at=40_000), 1.2), (IgnoreRange(), 4.0)], ids=["resets", "ignored ranges"]
    )
    def test_faults_in_the_middle_cost_bytes_and_not_the_content(self, fault: Reset | IgnoreRange, most: float) -> None:
        _, sent = self.pull(ranges=4, faults=(FaultRule(fault, Where(kind="blob"), skip=4, times=2),))
        assert sent <= most * self.SIZE


def test_without_threads_it_is_one_stream(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert read(make_bench(Host(), policy=POLICY)) == (0, CONTENT)
