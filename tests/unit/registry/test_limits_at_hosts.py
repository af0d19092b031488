"""A host that refuses transfers beside others of ours is asked again when one of those is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest

from imagestore import CancelToken, Descriptor, Digest, Reference, TransferPolicy
from imagestore.errors import OperationCancelledError, RegistryError, RegistryUnavailableError
from imagestore.registry.limits import TransferSlots
from tests.support.streams import drain
from tests.unit.registry.wire import CONTENT, LAYER, ONE, OTHER, MakeBench, Mirrored


def test_a_refused_transfer_waits_until_a_served_one_has_ended() -> None:
    slots, cancel, order = TransferSlots(4), CancelToken(60), list[str]()
    served, refused = (slots.take(ONE, cancel=cancel) for _ in range(2))
    served.note_served()
    refused.give_back()

    def wait() -> None:
        assert refused.wait_for_another(cancel=cancel)
        order.append("tried again")

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.05)
    assert order == []
    served.give_back()
    waiting.join(60)
    assert order == ["tried again"]


def test_refused_transfers_do_not_wait_for_each_other() -> None:
    slots, cancel = TransferSlots(4), CancelToken(60)
    first, second = (slots.take(ONE, cancel=cancel) for _ in range(2))
    slots.take(OTHER, cancel=cancel).note_served()
    for each in (first, second):
        each.give_back()
        assert not each.wait_for_another(cancel=cancel)


def test_a_transfer_refused_while_another_was_served_retries_after_that_one_ended() -> None:
    slots, cancel = TransferSlots(4), CancelToken()
    served, refused = (slots.take(ONE, cancel=cancel) for _ in range(2))
    served.note_served()
    served.give_back()
    refused.give_back()
    assert refused.wait_for_another(cancel=cancel)
    # Next to nobody.
    alone = slots.take(ONE, cancel=cancel)
    alone.give_back()
    assert not alone.wait_for_another(cancel=cancel)


def test_waiting_for_the_end_of_another_ends_when_cancelled() -> None:
    slots, cancel = TransferSlots(4), CancelToken()
    served, refused = (slots.take(ONE, cancel=cancel) for _ in range(2))
    served.note_served()
    refused.give_back()
    timer = threading.Timer(0.05, cancel.cancel)
    timer.start()
    with pytest.raises(OperationCancelledError):
        refused.wait_for_another(cancel=cancel)
    timer.join()


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
def test_a_transfer_refused_during_a_long_one_waits_for_its_end(
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
            # It waits behind its last try, of which nothing is seen from here.
            thread.join(0.1)
            assert thread.is_alive()
        else:
            thread.join()
        assert drain(first) == CONTENT
    thread.join()
    assert found == [CONTENT if waits else status]


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


def test_a_blob_that_comes_without_ranges_after_server_errors_holds_a_slot(make_bench: MakeBench) -> None:
    """Once, its call's last failure had released the slot, and the host seemed to serve a transfer for ever."""
    content = bytes(range(64))
    layer, refused = (Descriptor("application/octet-stream", Digest.of(each), 64) for each in (content, content[::-1]))

    def handle(request: httpx.Request) -> httpx.Response:
        if str(refused.digest) in request.url.path:
            return httpx.Response(503)
        return httpx.Response(500) if "Range" in request.headers else httpx.Response(200, content=content)

    bench = make_bench(handle)
    reference = Reference.parse("registry.example/team/app:1")
    with bench.client.blob(reference, layer, offset=32, cancel=bench.cancel) as stream:
        assert drain(stream) == content
    token = CancelToken(60)
    with pytest.raises(RegistryUnavailableError), bench.client.blob(reference, refused, cancel=token):
        pass
