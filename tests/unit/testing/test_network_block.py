"""The network block: loopback and allowed hosts are reached, nothing else."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore.errors import InvalidInputError
from imagestore.testing import Registry, build_image
from imagestore.testing.network_block import NetworkBlockedError, blocked_network

if TYPE_CHECKING:
    pass


def test_an_allowed_host_that_no_expression_can_be_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"allowed host '\*\.example'"), blocked_network(["*.example"]):
        pass


def test_a_blocked_network_lets_loopback_through_and_nothing_else() -> None:
    with Registry({"registry.example/app:1": build_image()}).serve() as server, blocked_network():
        assert httpx.get(f"{server.url}/v2/").status_code == 200
        for host in ("192.0.2.1", "registry.invalid"):
            with pytest.raises(NetworkBlockedError, match=host):
                httpx.get(f"http://{host}/")


def test_allowed_hosts_are_names_addresses_or_expressions() -> None:
    allowed = [r"192\.0\.2\..*", "registry.invalid"]
    with blocked_network(allowed), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.01)
        with pytest.raises(OSError) as caught:  # noqa: PT011 - which one depends on the machine's routes
            probe.connect(("192.0.2.1", 9))
        assert not isinstance(caught.value, NetworkBlockedError)
        with pytest.raises(NetworkBlockedError):
            probe.connect_ex(("198.51.100.1", 9))


def test_every_door_is_watched() -> None:
    there = ("192.0.2.1", 9)
    with blocked_network(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for leave in (
            lambda: probe.connect(there),
            lambda: probe.connect_ex(there),
            lambda: probe.sendto(b"x", there),
            lambda: probe.sendto(b"x", 0, there),
            lambda: probe.sendmsg([b"x"], [], 0, there),
            lambda: socket.getaddrinfo(b"registry.invalid", 9),
            lambda: socket.getaddrinfo(host="registry.invalid", port=9),
            lambda: socket.gethostbyname("registry.invalid"),
            lambda: socket.gethostbyname_ex("registry.invalid"),
        ):
            with pytest.raises(NetworkBlockedError):
                leave()
        with pytest.raises(TypeError):
            probe.connect()  # type: ignore[call-arg]


def test_the_block_ends_with_the_block() -> None:
    before = (socket.socket.connect, socket.getaddrinfo)
    with blocked_network():
        assert (socket.socket.connect, socket.getaddrinfo) != before
    assert (socket.socket.connect, socket.getaddrinfo) == before
