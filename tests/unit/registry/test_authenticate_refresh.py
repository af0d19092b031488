"""Refresh tokens that a token service replaces: which is the newest, and when it is forgotten."""

from __future__ import annotations

import pytest

from imagestore.errors import AuthenticationError, ImageStoreError, RegistryUnavailableError
from imagestore.registry.auth.authenticate import RegistryAuthenticator
from tests.unit.registry.token_server import IDENTITY, Asked, FakeResponse, TokenServer, answer, bearer, given


@pytest.mark.parametrize(
    ("answer_between", "error", "third"),
    [(400, AuthenticationError, "CANARY-identity"), (503, RegistryUnavailableError, "rotated")],
    ids=["refused", "out of order for a moment"],
)
def test_a_replaced_refresh_token_is_used_next_until_it_is_refused(
    answer_between: int, error: type[ImageStoreError], third: str
) -> None:
    steps = iter([200, answer_between, 200])

    def handler(asked: Asked) -> FakeResponse:
        status = next(steps)
        return server.grant(asked, refresh_token="rotated") if status == 200 else FakeResponse(status)

    server = TokenServer(handler)
    authenticator = RegistryAuthenticator(server, given(IDENTITY))
    answer(authenticator)
    with pytest.raises(error):
        answer(authenticator, bearer("repository:a/c:pull"), repository="a/c")
    answer(authenticator, bearer("repository:a/d:pull"), repository="a/d")
    assert [asked.form["refresh_token"] for asked in server.asked] == ["CANARY-identity", "rotated", third]


def test_an_odd_realm_is_refused_in_its_registry_s_name() -> None:
    authenticator = RegistryAuthenticator(TokenServer(), given(IDENTITY))
    with pytest.raises(AuthenticationError, match=r"^https://registry\.example: token service address: ") as raised:
        answer(authenticator, bearer(realm="ftp://auth.example/"))
    assert raised.value.host == "registry.example"
