"""Trying credentials before they are stored: what each answer of a registry says about them."""

from __future__ import annotations

import httpx
import pytest
from httpx import Headers

from imagestore import CancelToken, Credential, Secret
from imagestore.errors import (
    AccessDeniedError,
    AuthenticationError,
    ImageStoreError,
    ProtocolError,
    RegistryUnavailableError,
)
from imagestore.registry.credentials.login import check_login
from imagestore.registry.endpoints import Endpoint
from imagestore.registry.transport.urls import origin_of
from tests.unit.registry.token_server import FakeResponse

BASE = "https://registry.example/v2"
ENDPOINT = Endpoint(BASE, origin_of(BASE), "registry.example", is_upstream=True, headers=(("X-Team", "blue"),))
CHALLENGE = FakeResponse(401, b"", Headers((("WWW-Authenticate", 'Basic realm="here"'),)))


class Registry:
    """Answers in turn."""

    def __init__(self, *answers: FakeResponse) -> None:
        self.answers = list(answers)
        self.asked: list[httpx.Request] = []

    def send(self, request: httpx.Request, *, cancel: CancelToken) -> FakeResponse:
        self.asked.append(request)
        return self.answers.pop(0)


def check(registry: Registry) -> None:
    check_login(registry, ENDPOINT, Credential("alice", Secret("CANARY")), cancel=CancelToken())


def test_credentials_are_sent_after_the_challenge_with_the_configured_headers() -> None:
    registry = Registry(CHALLENGE, FakeResponse(200, b"{}", Headers(())))
    check(registry)
    first, second = registry.asked
    assert (str(first.url), first.headers["X-Team"]) == (f"{BASE}/", "blue")
    assert "Authorization" not in first.headers
    assert second.headers["X-Team"] == "blue"
    assert second.headers["Authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AuthenticationError),
        (403, AccessDeniedError),
        (404, ProtocolError),
        (302, ProtocolError),
        (408, RegistryUnavailableError),
        (429, RegistryUnavailableError),
        (500, RegistryUnavailableError),
        (503, RegistryUnavailableError),
    ],
)
def test_a_refusal_and_a_registry_that_is_down_differ_by_status(status: int, kind: type[ImageStoreError]) -> None:
    last = CHALLENGE if status == 401 else FakeResponse(status, b"", Headers(()))
    with pytest.raises(kind) as caught:
        check(Registry(CHALLENGE, last))
    assert type(caught.value) is kind
    assert "CANARY" not in f"{caught.value} {caught.value.hint}"


def test_a_registry_that_asks_for_nothing_proves_nothing() -> None:
    with pytest.raises(AuthenticationError, match="asks for no credentials, so these can't be checked") as caught:
        check(Registry(FakeResponse(200, b"{}", Headers(()))))
    assert "--no-check" in caught.value.hint


def test_a_registry_that_wants_tls_is_named_in_the_hint() -> None:
    base = "http://localhost:5000/v2"
    said = FakeResponse(400, b"Client sent an HTTP request to an HTTPS server.\n", Headers(()), url=f"{base}/")
    endpoint = Endpoint(base, origin_of(base), "localhost:5000", is_upstream=True)
    with pytest.raises(ProtocolError, match="expected status 200") as caught:
        check_login(Registry(said), endpoint, Credential("alice", Secret("CANARY")), cancel=CancelToken())
    assert 'server = "https://localhost:5000"' in caught.value.hint
