"""Whom credentials are shown to: the registry they are for, its token service, and where that one redirects."""

from __future__ import annotations

import logging
import traceback
from urllib.parse import urlsplit

import pytest
from httpx import Headers

from imagestore.errors import AuthenticationError
from imagestore.registry.auth.authenticate import RegistryAuthenticator
from imagestore.registry.credentials.model import Anonymous
from imagestore.registry.policy import AuthPolicy, RealmTrust
from imagestore.registry.transport.addresses import Origin
from tests.unit.registry.token_server import (
    ALICE,
    IDENTITY,
    PASSWORD,
    Asked,
    FakeResponse,
    TokenServer,
    answer,
    bearer,
    given,
)


def test_two_registries_with_one_realm_never_share_a_token() -> None:
    server = TokenServer()
    authenticator = RegistryAuthenticator(server, Anonymous())
    other = Origin("https", "other.registry.example", 443)
    assert answer(authenticator) != answer(authenticator, origin=other)
    assert len(server.asked) == 2


def test_credentials_of_one_registry_are_not_shown_to_another() -> None:
    server = TokenServer()
    authenticator = RegistryAuthenticator(server, given(ALICE))
    answer(authenticator, origin=Origin("https", "mirror.registry.example", 443))
    answer(authenticator, origin=Origin("https", "registry.example", 5000))
    assert [asked.authorization for asked in server.asked] == ["", ""]


def test_a_mirror_sees_the_source_s_credentials_only_by_policy() -> None:
    server = TokenServer()
    policy = AuthPolicy(credential_hosts={"mirror.registry.example": "registry.example"})
    authenticator = RegistryAuthenticator(server, given(ALICE), policy=policy)
    answer(authenticator, origin=Origin("https", "mirror.registry.example", 443))
    assert server.asked[0].authorization.startswith("Basic ")


def test_docker_hub_s_api_host_has_docker_hub_s_credentials() -> None:
    server = TokenServer()
    authenticator = RegistryAuthenticator(server, given(ALICE, "docker.io"))
    hub = Origin("https", "registry-1.docker.io", 443)
    answer(authenticator, bearer(realm="https://auth.docker.io/token"), origin=hub)
    assert server.asked[0].authorization.startswith("Basic ")


STRANGER = bearer(realm="https://auth.stranger.test/token")


def test_strict_mode_keeps_credentials_from_a_stranger() -> None:
    server = TokenServer()
    policy = AuthPolicy(realm_trust=RealmTrust.STRICT)
    with pytest.raises(AuthenticationError, match="were not sent"):
        answer(RegistryAuthenticator(server, given(ALICE), policy=policy), STRANGER)
    assert server.asked == []
    assert answer(RegistryAuthenticator(server, Anonymous(), policy=policy), STRANGER)
    trusted = AuthPolicy(RealmTrust.STRICT, frozenset({("registry.example", "auth.stranger.test")}))
    assert answer(RegistryAuthenticator(server, given(ALICE), policy=trusted), STRANGER)


@pytest.mark.parametrize(
    ("registry", "realm"),
    [
        (Origin("https", "team.jfrog.io", 443), "https://other.jfrog.io/token"),
        (Origin("https", "registry.me.uk", 443), "https://other.me.uk/token"),
        (Origin("http", "127.0.0.1", 5000), "http://127.0.0.1:5001/token"),
    ],
    ids=str,
)
def test_strict_mode_takes_no_neighbour_for_the_registry(registry: Origin, realm: str) -> None:
    server = TokenServer()
    shown = str(registry).removeprefix("http://").removeprefix("https://")
    authenticator = RegistryAuthenticator(server, given(ALICE, shown), policy=AuthPolicy(realm_trust=RealmTrust.STRICT))
    with pytest.raises(AuthenticationError, match="were not sent"):
        answer(authenticator, bearer(realm=realm), origin=registry)
    assert server.asked == []


def test_warn_mode_names_a_stranger_once(caplog: pytest.LogCaptureFixture) -> None:
    authenticator = RegistryAuthenticator(TokenServer(), given(ALICE))
    with caplog.at_level(logging.WARNING):
        answer(authenticator, STRANGER)
        answer(authenticator, bearer("repository:a/c:pull", "https://auth.stranger.test/token"), repository="a/c")
    assert [record.getMessage() for record in caplog.records] == [
        "credentials go to token service https://auth.stranger.test on another host or port, named by https://registry.example"
    ]


def test_a_password_over_plain_http_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    basic = Headers((("WWW-Authenticate", "Basic realm=x"),))
    for host in ("registry.internal", "127.0.0.1"):
        with caplog.at_level(logging.WARNING):
            answer(RegistryAuthenticator(TokenServer(), given(ALICE, host)), basic, origin=Origin("http", host, 80))
    assert ["registry.internal" in record.getMessage() for record in caplog.records] == [True]


def test_redirects_stay_on_the_service_s_origin() -> None:
    def handler(asked: Asked) -> FakeResponse:
        if urlsplit(asked.url).path == "/token":
            return FakeResponse(307, headers=Headers((("Location", "/moved?x=1"),)))
        return server.grant(asked)

    server = TokenServer(handler)
    assert answer(RegistryAuthenticator(server, given(ALICE))) == "Bearer CANARY-2"
    assert server.asked[1].url == "https://auth.registry.example/moved?x=1"


@pytest.mark.parametrize(
    "location",
    [
        "https://evil.example/token",
        "//evil.example/token",
        "http://auth.registry.example/token",
        "https://auth.registry.example:444/token",
    ],
)
def test_redirects_elsewhere_are_refused(location: str) -> None:
    server = TokenServer(lambda _: FakeResponse(302, headers=Headers((("Location", location),))))
    with pytest.raises(AuthenticationError, match="redirects to"):
        answer(RegistryAuthenticator(server, given(ALICE)))
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "location",
    ["", "http://[", f"//[::1/{PASSWORD}", f"ftp://auth.registry.example/{PASSWORD}", f"https://a b/{PASSWORD}"],
)
def test_a_redirect_that_leads_nowhere_is_refused_in_the_service_s_name(location: str) -> None:
    server = TokenServer(lambda _: FakeResponse(302, headers=Headers((("Location", location),))))
    service = r"^token service https://auth\.registry\.example of registry\.example: "
    with pytest.raises(AuthenticationError, match=service) as raised:
        answer(RegistryAuthenticator(server, given(ALICE)))
    assert raised.value.host == "registry.example"
    # It may quote what it was sent.
    assert PASSWORD not in "".join(traceback.format_exception(raised.value))


def test_redirects_in_a_circle_end() -> None:
    server = TokenServer(lambda _: FakeResponse(302, headers=Headers((("Location", "/token"),))))
    with pytest.raises(AuthenticationError, match="at most 3 redirects"):
        answer(RegistryAuthenticator(server, given(ALICE)))


def test_a_post_is_not_turned_into_a_get_by_a_redirect() -> None:
    server = TokenServer(lambda _: FakeResponse(302, headers=Headers((("Location", "/other"),))))
    with pytest.raises(AuthenticationError):
        answer(RegistryAuthenticator(server, given(IDENTITY)))
    assert len(server.asked) == 1
