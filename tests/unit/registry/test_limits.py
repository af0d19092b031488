"""One host gives only so many blobs at a time, over all pulls of a client."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest

from imagestore import CancelToken, Reference, TransferPolicy
from imagestore.errors import (
    DeadlineExceededError,
    OperationCancelledError,
    ReferenceNotFoundError,
    RegistryError,
    SizeMismatchError,
)
from imagestore.registry.limits import TransferSlots
from imagestore.registry.transport.addresses import Origin
from tests.support.streams import drain
from tests.unit.registry.wire import CONTENT, LAYER, ONE, OTHER, MakeBench


def test_hosts_do_not_take_each_others_places() -> None:
    slots, cancel = TransferSlots(1), CancelToken()
    slots.take(ONE, cancel=cancel)
    slots.take(OTHER, cancel=cancel)


@pytest.mark.parametrize(
    ("one", "another"), [("127.0.0.1", "::ffff:127.0.0.1"), ("::1", "0:0::1"), ("one.example", "One.example")]
)
def test_all_ports_and_spellings_of_a_host_share_its_places(one: str, another: str) -> None:
    slots = TransferSlots(1)
    taken = slots.take(Origin("https", one, 443), cancel=CancelToken())
    with pytest.raises(DeadlineExceededError):
        slots.take(Origin("http", another, 5000), cancel=CancelToken(0.01))
    taken.give_back()
    slots.take(Origin("http", another, 5000), cancel=CancelToken())


def test_a_place_given_back_twice_is_one_place() -> None:
    slots, cancel = TransferSlots(2), CancelToken()
    first = slots.take(ONE, cancel=cancel)
    slots.take(ONE, cancel=cancel)
    first.give_back()
    first.give_back()
    slots.take(ONE, cancel=cancel)
    with pytest.raises(DeadlineExceededError):
        slots.take(ONE, cancel=CancelToken(0.01))


class Crowd(httpx.SyncByteStream):
    """A body that notes how many of its kind are open; each waits until as many as expected have met."""

    def __init__(self, meeting: threading.Barrier | None) -> None:
        self.now = self.most = 0
        self.lock = threading.Lock()
        self.meeting = meeting

    def __iter__(self) -> Iterator[bytes]:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        if self.meeting is not None:
            self.meeting.wait(60)
        yield CONTENT

    def close(self) -> None:
        with self.lock:
            self.now -= 1


def test_pulls_of_one_client_share_the_hosts_places(make_bench: MakeBench) -> None:
    # Twelve readers with three slots: they come in groups of exactly three.
    crowd = Crowd(threading.Barrier(3))
    bench = make_bench(lambda request: httpx.Response(200, stream=crowd), policy=TransferPolicy(connections_per_host=3))
    clients = [bench.client, bench.client.observed_by(lambda event: None)]

    def read(number: int) -> None:
        reference = Reference.parse(f"registry.example/team/app{number}:1")
        with clients[number % 2].blob(reference, LAYER, cancel=CancelToken(60)) as stream:
            received.append(drain(stream))

    received: list[bytes] = []
    threads = [threading.Thread(target=read, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert received == [CONTENT] * 12
    assert crowd.most == 3


@pytest.mark.parametrize(
    "answer", [httpx.Response(404), httpx.Response(200, headers={"Content-Length": "7"}), httpx.ConnectError("down")]
)
def test_a_refused_transfer_gives_its_place_back(make_bench: MakeBench, answer: httpx.Response | Exception) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if "/good/" in request.url.path:
            return httpx.Response(200, content=CONTENT)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers)

    bench = make_bench(handle, policy=TransferPolicy(connections_per_host=1))
    with pytest.raises((RegistryError, ReferenceNotFoundError, SizeMismatchError)):
        bench.client.blob(Reference.parse("registry.example/bad/app:1"), LAYER, cancel=CancelToken(60))
    good = Reference.parse("registry.example/good/app:1")
    with bench.client.blob(good, LAYER, cancel=CancelToken(60)) as stream:
        assert drain(stream) == CONTENT


def test_a_resumed_transfer_takes_one_place_only(make_bench: MakeBench) -> None:
    def breaking(request: httpx.Request) -> httpx.Response:
        asked = request.headers.get("Range", "")
        first = int(asked[6:-1]) if asked else 0
        fields = {"Content-Range": f"bytes {first}-{len(CONTENT) - 1}/{len(CONTENT)}"}
        return httpx.Response(206 if asked else 200, headers=fields, stream=Short(CONTENT[first : first + 300]))

    bench = make_bench(breaking, policy=TransferPolicy(connections_per_host=1, attempts=9))
    for _ in range(2):
        with bench.client.blob(Reference.parse("registry.example/a:1"), LAYER, cancel=CancelToken(60)) as stream:
            assert drain(stream) == CONTENT


class Short(httpx.SyncByteStream):
    def __init__(self, piece: bytes) -> None:
        self.piece = piece

    def __iter__(self) -> Iterator[bytes]:
        yield self.piece


def test_places_are_waited_for_by_retries_too(make_bench: MakeBench) -> None:
    bench = make_bench(lambda request: httpx.Response(503), policy=TransferPolicy(connections_per_host=1))
    for _ in range(2):
        with pytest.raises(RegistryError, match="503"):
            bench.client.blob(Reference.parse("registry.example/a:1"), LAYER, cancel=CancelToken(60))


@pytest.mark.parametrize(("status", "fields"), [(429, {}), (503, {}), (429, {"Retry-After": "7"}), (500, {})])
def test_others_have_the_place_of_a_transfer_that_waits_for_its_next_try(
    make_bench: MakeBench, status: int, fields: dict[str, str]
) -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path.split("/")[3])
        is_refused = asked.count("refused") == 1 and asked[-1] == "refused"
        return httpx.Response(status, headers=fields) if is_refused else httpx.Response(200, content=CONTENT)

    def read(name: str) -> None:
        reference = Reference.parse(f"registry.example/team/{name}:1")
        with bench.client.blob(reference, LAYER, cancel=CancelToken(60)) as stream:
            assert drain(stream) == CONTENT

    def sleep(cancel: CancelToken) -> None:
        bench.time.on_sleep = lambda cancel: None
        # The pause that a Retry-After asks for is everybody's.
        bench.time.seconds += 10 if fields else 0
        read("other")

    bench = make_bench(handle, policy=TransferPolicy(connections_per_host=1))
    bench.time.on_sleep = sleep
    for _ in range(2):
        read("refused")
    assert asked == ["refused", "other", "refused", "refused"]


def test_a_lent_place_is_waited_for_behind_others_and_given_back_once() -> None:
    slots, cancel = TransferSlots(1), CancelToken(60)
    slot = slots.take(ONE, cancel=cancel)
    with slot.lent(cancel=cancel):
        slots.take(ONE, cancel=cancel).give_back()
    with pytest.raises(DeadlineExceededError):
        slots.take(ONE, cancel=CancelToken(0.01))
    slot.give_back()
    slots.take(ONE, cancel=cancel).give_back()


def test_a_lent_place_stays_given_back_when_waiting_for_it_is_cancelled() -> None:
    slots, cancel = TransferSlots(1), CancelToken()
    slot = slots.take(ONE, cancel=cancel)
    slot.give_back()
    other = slots.take(ONE, cancel=CancelToken(60))
    cancel.cancel()
    with pytest.raises(OperationCancelledError), slot.lent(cancel=cancel):
        pass
    slot.give_back()
    other.give_back()
    slots.take(ONE, cancel=CancelToken(60))
    with pytest.raises(DeadlineExceededError):
        slots.take(ONE, cancel=CancelToken(0.01))
