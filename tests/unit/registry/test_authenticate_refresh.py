"""Refresh tokens that a token service replaces: which is the newest, and when it is forgotten."""

from __future__ import annotations

import pytest

from imagestore.errors import AuthenticationError, RegistryUnavailableError
from imagestore.registry.auth.authenticate import RegistryAuthenticator
from tests.unit.registry.token_server import IDENTITY, Asked, FakeResponse, TokenServer, answer, bearer, given


def test_a_service_that_fails_for_a_moment_costs_no_refresh_token() -> None:
    steps = iter([200, 503, 200])

    def handler(asked: Asked) -> FakeResponse:
        status = next(steps)
        return server.grant(asked, refresh_token="rotated") if status == 200 else FakeResponse(status)

    server = TokenServer(handler)
    authenticator = RegistryAuthenticator(server, given(IDENTITY))
    answer(authenticator)
    with pytest.raises(RegistryUnavailableError):
        answer(authenticator, bearer("repository:a/c:pull"), repository="a/c")
    answer(authenticator, bearer("repository:a/d:pull"), repository="a/d")
    sent = [asked.form["refresh_token"] for asked in server.asked]
    assert sent == ["CANARY-identity", "rotated", "rotated"]


def test_an_odd_realm_is_refused_in_its_registry_s_name() -> None:
    authenticator = RegistryAuthenticator(TokenServer(), given(IDENTITY))
    with pytest.raises(AuthenticationError, match=r"^https://registry\.example: token service address: ") as raised:
        answer(authenticator, bearer(realm="ftp://auth.example/"))
    assert raised.value.host == "registry.example"
