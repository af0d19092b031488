"""Through a proxy every wait ends as it does without one: by cancelling, by the head's limit, by a body's pace."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from imagestore import CancelToken
from imagestore.config import ConnectionSettings
from imagestore.errors import OperationCancelledError, RegistryUnavailableError
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.messages import Response, make_request
from imagestore.registry.transport.network import Timeouts
from imagestore.registry.transport.proxy import ProxyRules
from tests.support.streams import drain
from tests.unit.registry.scripted_server import BODY, HEAD, Script, Server, say, whole


@contextlib.contextmanager
def sending(proxy: Server, timeouts: Timeouts) -> Iterator[HttpSender]:
    rules = ProxyRules(http=f"http://127.0.0.1:{proxy.port}")
    with contextlib.closing(HttpSender(proxies=rules, timeouts=timeouts)) as made:
        yield made


def ask(sender: HttpSender, cancel: CancelToken | None = None) -> Response:
    bound = sender.bound(Origin("http", "registry.example", 80), ConnectionSettings())
    return bound.send(make_request("GET", "http://registry.example/v2/x"), cancel=cancel or CancelToken())


def stopping(ended: threading.Event, said: bytes = b"") -> Script:
    """Say a part, and no more."""

    def run(connection: socket.socket) -> None:
        connection.sendall(said)
        ended.wait(60)

    return run


def test_cancelling_ends_a_body_that_comes_over_a_connection_that_was_kept(proxy: Server) -> None:
    ended = threading.Event()
    proxy.scripts += [whole(), stopping(ended, HEAD % len(BODY) + BODY[:10])]
    with sending(proxy, Timeouts(connect=60.0, idle=60.0)) as sender:
        with ask(sender) as response:
            assert drain(response) == BODY
        cancel = CancelToken()
        timer = threading.Timer(0.2, cancel.cancel)
        with ask(sender, cancel) as response:
            timer.start()
            with pytest.raises(OperationCancelledError):
                drain(response)
        timer.join()
    assert proxy.connections == 1
    ended.set()


def test_a_silent_registry_behind_a_proxy_has_the_heads_time(proxy: Server) -> None:
    ended = threading.Event()
    proxy.scripts.append(stopping(ended))
    with sending(proxy, Timeouts(connect=60.0, idle=60.0, head=0.3)) as sender, pytest.raises(RegistryUnavailableError):
        ask(sender)
    ended.set()


def test_a_body_that_drips_through_a_proxy_is_given_up(proxy: Server) -> None:
    proxy.scripts.append(say(HEAD % len(BODY), *[b"x"] * 40, pause=0.1))
    with (
        sending(proxy, Timeouts(connect=60.0, idle=60.0, least_bytes_per_second=1000, window=0.3)) as sender,
        ask(sender) as response,
        pytest.raises(RegistryUnavailableError, match="slower than 1000 bytes per second"),
    ):
        drain(response)
