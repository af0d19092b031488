"""A host that refuses transfers beside others of ours has fewer places."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from imagestore.cancel import CancelToken
from imagestore.descriptor import Descriptor
from imagestore.digest import Digest
from imagestore.errors import (
    DeadlineExceededError,
    PreconditionError,
    RegistryError,
)
from imagestore.reference import Reference
from imagestore.registry import places as module
from imagestore.registry.places import HostPlaces
from imagestore.registry.policy import TransferPolicy
from tests.support.streams import drain
from tests.unit.registry.crowds import CONTENT, LAYER, ONE, OTHER, MakeBench
from tests.unit.registry.wire import Mirrored


def test_a_host_that_serves_no_more_has_fewer_places_until_it_is_idle() -> None:
    places, cancel = HostPlaces(5), CancelToken()
    assert not places.take(ONE, cancel=cancel).refuse()
    assert places.have_room()
    given = [places.take(ONE, cancel=cancel) for _ in range(3)]
    assert given.pop().refuse()
    assert not places.have_room()
    with pytest.raises(DeadlineExceededError):
        places.take(ONE, cancel=CancelToken(0.01))
    places.take(OTHER, cancel=cancel).give_back()
    # It may turn out to serve even less.
    assert given.pop().refuse()
    with pytest.raises(DeadlineExceededError):
        places.take(ONE, cancel=CancelToken(0.01))
    given.pop().give_back()
    assert len([places.take(ONE, cancel=cancel) for _ in range(5)]) == 5


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def is_full(places: HostPlaces) -> bool:
    try:
        places.take(ONE, cancel=CancelToken(0.01)).give_back()
    except DeadlineExceededError:
        return True
    return False


def test_a_busy_host_gets_one_place_more_now_and_then() -> None:
    clock = Clock()
    places, cancel = HostPlaces(4, clock=clock), CancelToken()
    given = [places.take(ONE, cancel=cancel) for _ in range(2)]
    assert given.pop().refuse()
    clock.seconds = 59.0
    assert is_full(places)
    # Long after: still one at a time.
    clock.seconds = 1000.0
    for _ in range(3):
        given.append(places.take(ONE, cancel=cancel))
        assert is_full(places)
        clock.seconds += 60.0
    assert len(given) == 4
    assert is_full(places)
    given.pop().give_back()
    assert not is_full(places)


def test_a_host_that_refuses_one_more_is_asked_more_and_more_seldom() -> None:
    clock = Clock()
    places, cancel = HostPlaces(4, clock=clock), CancelToken()
    places.take(ONE, cancel=cancel)
    pauses = [0.0]
    for _ in range(7):
        while is_full(places):
            clock.seconds += 20.0
        place = places.take(ONE, cancel=cancel)
        assert place.refuse()
        pauses.append(clock.seconds)
    assert [after - before for before, after in itertools.pairwise(pauses)][1:] == [60, 120, 240, 480, 960, 960]


def test_whoever_waits_gets_the_place_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PATIENCE_SECONDS", 0.05)
    places, cancel = HostPlaces(4), CancelToken(60)
    places.take(ONE, cancel=cancel)
    assert places.take(ONE, cancel=cancel).refuse()
    thread = threading.Thread(target=lambda: places.take(ONE, cancel=cancel))
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_nobody_gets_the_place_of_who_was_refused() -> None:
    places, cancel, order = HostPlaces(2), CancelToken(60), []
    first, second = (places.take(ONE, cancel=cancel) for _ in range(2))

    def wait() -> None:
        places.take(ONE, cancel=cancel)
        order.append("taken")

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not places._waiting:
        time.sleep(0.001)
    assert second.refuse()
    waiting.join(0.05)
    assert order == []
    first.give_back()
    waiting.join(60)
    assert order == ["taken"]


def test_who_was_refused_while_another_was_served_may_try_again_though_that_one_is_over() -> None:
    places, cancel = HostPlaces(4), CancelToken()
    served, refused, idle = (places.take(ONE, cancel=cancel) for _ in range(3))
    served.is_served = True
    served.give_back()
    idle.give_back()
    assert refused.refuse()
    # Next to nobody.
    assert not places.take(ONE, cancel=cancel).refuse()


@pytest.mark.parametrize("reader", ["nobody", "another thread"])
def test_who_waits_for_what_it_holds_unread_itself_is_told(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    monkeypatch.setattr(module, "_UNREAD_SECONDS", 0.3)
    body = b"y" * 200_000
    layer = Descriptor("application/octet-stream", Digest.of(body), len(body))
    bench = make_bench(lambda request: httpx.Response(200, content=body), policy=TransferPolicy(connections_per_host=1))
    bench.client._places._clock = time.monotonic
    reference = Reference.parse("registry.example/team/app:1")
    with bench.client.blob(reference, layer, cancel=CancelToken(60)) as held:
        if reader == "nobody":
            with pytest.raises(PreconditionError, match="belong to this thread"):
                bench.client.blob(reference, layer, cancel=CancelToken(60))
            assert drain(held) == body
            return

        def read() -> None:
            piece = memoryview(bytearray(1000))
            while held.readinto(piece):
                time.sleep(0.005)
            held.close()

        thread = threading.Thread(target=read)
        thread.start()
        with bench.client.blob(reference, layer, cancel=CancelToken(60)) as second:
            assert drain(second) == body
        thread.join()


class OneAtATime:
    """Refuses a transfer while another one lasts."""

    def __init__(self, status: int, fields: dict[str, str]) -> None:
        self.status = status
        self.fields = fields
        self.is_busy = False
        self.was_refused = threading.Event()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.is_busy:
            self.was_refused.set()
            if not self.status:
                raise httpx.ReadTimeout("nothing came")
            return httpx.Response(self.status, headers=self.fields)
        self.is_busy = True
        return httpx.Response(200, headers={"Content-Length": str(len(CONTENT))}, stream=Busy(self))


class Busy(httpx.SyncByteStream):
    def __init__(self, host: OneAtATime) -> None:
        self.host = host

    def __iter__(self) -> Iterator[bytes]:
        yield CONTENT

    def close(self) -> None:
        self.host.is_busy = False


@pytest.mark.parametrize(
    ("status", "fields", "waits"),
    [
        (0, {}, True),
        (503, {}, True),
        (429, {}, True),
        (500, {}, False),
        (429, {"Retry-After": "1"}, False),
        (404, {}, False),
    ],
)
def test_who_is_refused_beside_a_long_transfer_waits_for_its_end(
    make_bench: MakeBench, status: int, fields: dict[str, str], waits: bool
) -> None:
    host = OneAtATime(status, fields)
    bench = make_bench(host, policy=TransferPolicy(attempts=2))
    reference = Reference.parse("registry.example/team/app:1")
    found: list[object] = []

    def second() -> None:
        try:
            with bench.client.blob(reference, LAYER, cancel=CancelToken(60)) as stream:
                found.append(drain(stream))
        except RegistryError as error:
            found.append(error.status)

    thread = threading.Thread(target=second)
    with bench.client.blob(reference, LAYER, cancel=CancelToken(60)) as first:
        thread.start()
        assert host.was_refused.wait(60)
        if waits:
            while not bench.client._places._waiting and thread.is_alive():
                time.sleep(0.001)
        else:
            thread.join()
        assert drain(first) == CONTENT
    thread.join()
    assert found == [CONTENT if waits else status]
    assert not bench.client._places._fewer


def test_a_mirror_that_is_crowded_is_passed_over(make_bench: MakeBench) -> None:
    host = OneAtATime(503, {})
    bench = make_bench(
        lambda request: host(request) if request.url.host == "mirror.example" else httpx.Response(200, content=CONTENT),
        endpoints=Mirrored(),
    )
    reference = Reference.parse("registry.example/team/app:1")
    with bench.client.blob(reference, LAYER, cancel=CancelToken(60)) as first:
        with bench.client.blob(reference, LAYER, cancel=CancelToken(60)) as second:
            assert drain(second) == CONTENT
            assert second.hosts == ("registry.example",)
        assert drain(first) == CONTENT
