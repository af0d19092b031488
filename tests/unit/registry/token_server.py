"""A simulated registry and its token service, with a ledger of what they saw."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import httpx
from httpx import Headers

from imagestore import CancelToken, Credential, CredentialLookup, Secret
from imagestore.registry.auth.authenticate import RegistryAuthenticator
from imagestore.registry.credentials.lookup import CredentialResolver
from imagestore.registry.credentials.model import FoundCredential
from imagestore.registry.credentials.sources import ExplicitSource
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.transport.messages import Response

if TYPE_CHECKING:
    from collections.abc import Callable

ORIGIN = Origin("https", "registry.example", 443)
REALM = "https://auth.registry.example/token"
PASSWORD = "CANARY-password"
SECRETS = (PASSWORD, "CANARY-identity", "CANARY-ready", base64.b64encode(f"alice:{PASSWORD}".encode()).decode())


class FakeResponse(Response):
    """An answer from nowhere."""

    def __init__(
        self, status: int, body: bytes = b"", headers: httpx.Headers | None = None, url: str = f"{ORIGIN}/v2/"
    ) -> None:
        asked = httpx.Request("GET", url)
        super().__init__(httpx.Response(status, headers=headers, stream=httpx.ByteStream(body), request=asked))


@dataclass(frozen=True)
class Asked:
    """What a token service saw."""

    method: str
    url: str
    query: dict[str, list[str]]
    form: dict[str, str]
    authorization: str


class TokenServer:
    """A sender; by default every request gets a new token."""

    def __init__(self, handler: Callable[[Asked], FakeResponse] | None = None) -> None:
        self.asked: list[Asked] = []
        self._handler = handler or self.grant

    def grant(self, asked: Asked, **more: object) -> FakeResponse:
        return FakeResponse(200, json.dumps({"token": f"CANARY-{len(self.asked)}", "expires_in": 300, **more}).encode())

    def send(self, request: httpx.Request, *, cancel: CancelToken) -> FakeResponse:
        cancel.check()
        query: dict[str, list[str]] = {}
        for name, value in parse_qsl(urlsplit(str(request.url)).query, keep_blank_values=True):
            query.setdefault(name, []).append(value)
        form = dict(parse_qsl(request.content.decode()))
        seen = Asked(request.method, str(request.url), query, form, request.headers.get("Authorization", ""))
        self.asked.append(seen)
        return self._handler(seen)


def given(credential: Credential, host: str = "registry.example") -> CredentialLookup:
    return CredentialResolver((ExplicitSource(FoundCredential(credential, "file /x, member auths['h']"), host),))


ALICE = Credential("alice", Secret(PASSWORD))
IDENTITY = Credential(identity_token=Secret("CANARY-identity"))


def bearer(scope: str = "repository:a/b:pull", realm: str = REALM, more: str = "") -> Headers:
    return Headers((("WWW-Authenticate", f'Bearer realm="{realm}",service="svc",scope="{scope}"{more}'),))


def answer(
    authenticator: RegistryAuthenticator,
    headers: Headers | None = None,
    *,
    repository: str = "a/b",
    origin: Origin = ORIGIN,
) -> str:
    """One whole request that is refused once."""
    authenticator.authorization(origin, repository)
    return authenticator.respond(origin, repository, bearer() if headers is None else headers, cancel=CancelToken())
