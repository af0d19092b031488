"""Where a public registry may not send us, on real sockets."""

from __future__ import annotations

import contextlib
import socket

import pytest

from imagestore import CancelToken
from imagestore.config import ConnectionSettings
from imagestore.errors import ProtocolError
from imagestore.registry.client_factory import EndpointAccess
from imagestore.registry.credentials.model import Anonymous
from imagestore.registry.endpoints import default_endpoint
from imagestore.registry.policy import AuthPolicy
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.messages import make_request
from tests.unit.registry.wire import OK, RawServers, say


class TestPrivateAddresses:
    """A public registry may not send us into our own network; resolution included."""

    HOME = Origin("https", "registry.example", 443)

    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"]
    )
    def test_a_private_literal_named_by_a_public_registry_is_refused(self, sender: HttpSender, host: str) -> None:
        bound = sender.bound(self.HOME, ConnectionSettings())
        with pytest.raises(ProtocolError, match="expected a public address"):
            bound.send(make_request("GET", f"http://{host}:1/"), cancel=CancelToken())

    def test_a_name_that_resolves_to_a_private_address_is_refused(
        self, sender: HttpSender, raw_server: RawServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = raw_server(say(OK, b"hello"))
        loopback = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: loopback)
        bound = sender.bound(self.HOME, ConnectionSettings())
        with pytest.raises(ProtocolError, match=r"storage\.example: expected a public address"):
            bound.send(make_request("GET", f"http://storage.example:{server.port}/"), cancel=CancelToken())
        assert server.requests == []

    def test_a_private_registry_may_name_its_neighbours(self, sender: HttpSender, raw_server: RawServers) -> None:
        server = raw_server(say(OK, b"hello"))
        bound = sender.bound(Origin("http", "10.0.0.9", 80), ConnectionSettings())
        with bound.send(make_request("GET", f"http://{server.host}/"), cancel=CancelToken()) as response:
            assert response.read(10) == b"hello"

    @pytest.mark.parametrize("registry", ["registry.example", "other.example"])
    def test_a_host_the_operator_trusts_may_have_a_private_address(
        self, sender: HttpSender, raw_server: RawServers, registry: str
    ) -> None:
        server = raw_server(say(OK, b"hello"))
        policy = AuthPolicy(trusted_realms=frozenset({("registry.example", "127.0.0.1")}))
        access = EndpointAccess(sender, Anonymous(), policy)(default_endpoint(registry))
        allowed = registry == "registry.example"
        with contextlib.nullcontext() if allowed else pytest.raises(ProtocolError, match="expected a public address"):
            access.sender.send(make_request("GET", f"http://{server.host}/"), cancel=CancelToken()).close()
        assert len(server.requests) == allowed

    def test_a_registry_found_at_a_private_address_may_name_its_neighbours(
        self, sender: HttpSender, raw_server: RawServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        registry, storage = raw_server(say(OK, b"hello")), raw_server(say(OK, b"again"))
        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, port, *args, **more: real("127.0.0.1", port, *args, **more)
        )
        home = Origin("http", "registry.internal", registry.port)
        bound = sender.bound(home, ConnectionSettings())
        with bound.send(make_request("GET", f"{home}/"), cancel=CancelToken()) as response:
            response.read(10)
        with bound.send(
            make_request("GET", f"http://storage.internal:{storage.port}/"), cancel=CancelToken()
        ) as response:
            assert response.read(10) == b"again"
