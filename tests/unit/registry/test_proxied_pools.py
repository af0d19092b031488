"""Connections through a proxy when the files of their settings are replaced: those that nobody uses are closed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.cancel import CancelToken
from imagestore.config.connection import ConnectionSettings
from imagestore.errors import RegistryUnavailableError
from imagestore.registry.exchange import Origin, Request, Response
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.proxies import ProxyRules
from tests.support.streams import drain
from tests.unit.registry.scripted_server import BODY, HEAD, PATIENT, Server, reset, say, whole


class Asker:
    """Asks through a proxy, with an authority's file that a test replaces."""

    def __init__(self, proxy: Server, file: Path) -> None:
        self.file = file
        rules = ProxyRules(http=f"http://127.0.0.1:{proxy.port}")
        self.sender = HttpSender(proxies=rules, timeouts=PATIENT)
        settings = ConnectionSettings(ca_files=(str(file),))
        self._bound = self.sender.bound(Origin("http", "registry.example", 80), settings)

    def ask(self) -> Response:
        return self._bound.send(Request("GET", "http://registry.example/v2/x"), cancel=CancelToken(10))

    def read(self) -> bytes:
        with self.ask() as response:
            return drain(response)

    def replace_file(self) -> None:
        with self.file.open("a") as stream:
            stream.write("\n")


@pytest.fixture
def asker(proxy: Server, tmp_path: Path) -> Iterator[Asker]:
    made = Asker(proxy, tmp_path / "ca.pem")
    with contextlib.closing(made.sender):
        yield made


def is_closed_by_client(proxy: Server, connection: int) -> bool:
    """Whether the thread that serves a connection, counted from 1, saw its end."""
    thread = proxy.threads[connection]
    thread.join(2)
    return not thread.is_alive()


def test_an_idle_connection_is_closed_when_the_files_of_its_settings_change(proxy: Server, asker: Asker) -> None:
    proxy.scripts += [whole()] * 3
    assert [asker.read(), asker.read()] == [BODY] * 2
    assert proxy.connections == 1
    asker.replace_file()
    assert asker.read() == BODY
    assert proxy.connections == 2
    assert is_closed_by_client(proxy, 1)
    assert proxy.threads[2].is_alive()


def test_a_transfer_under_way_ends_before_its_connection_is_closed(proxy: Server, asker: Asker) -> None:
    proxy.scripts += [say(HEAD % len(BODY), BODY[:1000], BODY[1000:], pause=0.05), whole()]
    with asker.ask() as response:
        asker.replace_file()
        assert asker.read() == BODY
        assert proxy.threads[1].is_alive()
        assert drain(response) == BODY
    assert is_closed_by_client(proxy, 1)
    assert proxy.threads[2].is_alive()


def test_the_first_of_two_transfers_to_end_leaves_the_other_its_connection(proxy: Server, asker: Asker) -> None:
    go = threading.Event()

    def held(connection: socket.socket) -> None:
        connection.sendall(HEAD % len(BODY) + BODY[:1000])
        assert go.wait(10)
        connection.sendall(BODY[1000:])

    proxy.scripts += [held, whole(), whole()]
    with asker.ask() as slow:
        with asker.ask() as quick:
            asker.replace_file()
            assert asker.read() == BODY
            assert drain(quick) == BODY
        go.set()
        assert drain(slow) == BODY
    assert is_closed_by_client(proxy, 1)
    assert is_closed_by_client(proxy, 2)


def test_a_request_that_failed_uses_no_connections_any_more(proxy: Server, asker: Asker) -> None:
    """Or those beside its own would never be closed."""
    proxy.scripts += [whole(), whole(), reset, whole()]
    with asker.ask() as one, asker.ask() as other:
        assert drain(one) == drain(other) == BODY
    with pytest.raises(RegistryUnavailableError):
        asker.read()
    asker.replace_file()
    assert asker.read() == BODY
    assert is_closed_by_client(proxy, 1)
    assert is_closed_by_client(proxy, 2)


def test_a_transfer_under_way_is_ended_by_closing_everything(proxy: Server, asker: Asker) -> None:
    proxy.scripts += [say(HEAD % len(BODY), BODY[:1000]), whole()]
    with asker.ask():
        asker.replace_file()
        assert asker.read() == BODY
        asker.sender.close()
        assert is_closed_by_client(proxy, 1)
    assert is_closed_by_client(proxy, 2)
