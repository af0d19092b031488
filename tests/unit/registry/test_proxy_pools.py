"""A transport through a proxy that was replaced, since the files of its settings changed: it ends with its answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from imagestore import CancelToken
from imagestore.registry.transport.messages import make_request
from imagestore.registry.transport.network import EXCHANGE, Exchange
from imagestore.registry.transport.proxy import ProxiedTransport
from tests.unit.registry.scripted_server import BODY, HEAD, Server, reset, say, whole


@pytest.fixture
def transport(proxy: Server) -> Iterator[ProxiedTransport]:
    with contextlib.closing(ProxiedTransport(f"http://127.0.0.1:{proxy.port}", None)) as made:
        yield made


def ask(transport: ProxiedTransport) -> httpx.Response:
    request = make_request("GET", "http://registry.example/v2/x")
    limits = dict.fromkeys(("connect", "read", "write", "pool"), 2.0)
    request.extensions = {"timeout": limits, EXCHANGE: Exchange(CancelToken(60))}
    return transport.handle_request(request)


def read(transport: ProxiedTransport) -> bytes:
    answer = ask(transport)
    try:
        return answer.read()
    finally:
        answer.close()


def is_closed_by_client(proxy: Server, connection: int) -> bool:
    """Whether the thread that serves a connection, counted from 1, saw its end."""
    thread = proxy.threads[connection]
    thread.join(60)
    return not thread.is_alive()


def test_transfers_from_many_hosts_keep_out_no_further_one(proxy: Server, transport: ProxiedTransport) -> None:
    count = 80
    proxy.scripts += [whole(b"body")] * count
    with contextlib.ExitStack() as stack:
        answers = [stack.enter_context(contextlib.closing(ask(transport))) for _ in range(count)]
        assert proxy.connections == count
        assert [answer.status_code for answer in answers] == [200] * count


def test_idle_connections_are_closed_at_once(proxy: Server, transport: ProxiedTransport) -> None:
    proxy.scripts += [whole()] * 2
    assert [read(transport), read(transport)] == [BODY] * 2
    assert proxy.connections == 1
    transport.close()
    assert is_closed_by_client(proxy, 1)


def test_a_transfer_under_way_ends_before_its_connection_is_closed(proxy: Server, transport: ProxiedTransport) -> None:
    proxy.scripts += [say(HEAD % len(BODY), BODY[:1000], BODY[1000:], pause=0.05)]
    answer = ask(transport)
    transport.close()
    assert answer.read() == BODY
    answer.close()
    assert is_closed_by_client(proxy, 1)


def test_the_first_of_two_transfers_to_end_leaves_the_other_its_connection(
    proxy: Server, transport: ProxiedTransport
) -> None:
    go = threading.Event()

    def held(connection: socket.socket) -> None:
        say(HEAD % len(BODY) + BODY[:1000])(connection)
        assert go.wait(60)
        say(BODY[1000:])(connection)

    proxy.scripts += [held, whole()]
    slow = ask(transport)
    quick = ask(transport)
    transport.close()
    assert quick.read() == BODY
    quick.close()
    go.set()
    assert slow.read() == BODY
    slow.close()
    assert is_closed_by_client(proxy, 1)
    assert is_closed_by_client(proxy, 2)


def test_a_request_that_failed_holds_no_connection(proxy: Server, transport: ProxiedTransport) -> None:
    proxy.scripts += [whole(), reset]
    assert read(transport) == BODY
    with pytest.raises(httpx.TransportError):
        ask(transport)
    transport.close()
    assert is_closed_by_client(proxy, 1)
