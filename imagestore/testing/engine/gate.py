"""The gate: Basic and token authentication as registries do it (registry token and OAuth2 documents).

Tokens are placeholders (``tape-token-1``, ...), granted for the intersection of what was asked and what is allowed, and
expire by the clock or when a fault revokes them. The realm may be on another logical host.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
import urllib.parse
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from imagestore.testing.engine.answers import error, json_reply
from imagestore.testing.engine.exchange import Reply, Request
from imagestore.testing.engine.targets import read_target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from imagestore.testing.engine.rules import Responder

_SCOPE: Final = re.compile(r"repository(?:\([a-z]+\))?:(?P<name>.{1,300}):(?P<actions>[a-z,*]{1,60})")


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """Every request needs user and password.

    Attributes:
        users: user to password.
    """

    users: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenAuth:
    """Every request needs a bearer token from the realm.

    Attributes:
        users: user to password; a wrong password is refused.
        identity_tokens: refresh token to user, for the OAuth2 form.
        realm_host: logical host of the token service; the registry's own when empty.
        realm_path: path of the token service.
        service: what the challenge names; the registry's host when empty.
        lifetime_seconds: how long a token is good for.
        is_anonymous_allowed: whether a token to pull is given to everyone.
        is_post_supported: whether the OAuth2 POST form exists; else it answers 404, as some services do.
    """

    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    identity_tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    realm_host: str = ""
    realm_path: str = "/token"
    service: str = ""
    lifetime_seconds: int = 300
    is_anonymous_allowed: bool = True
    is_post_supported: bool = True


@dataclass(frozen=True, slots=True)
class _Grant:
    scopes: frozenset[str]
    expires: float


class TokenGate:
    """Guards one logical host with tokens, and is its token service."""

    def __init__(
        self, host: str, auth: TokenAuth, inside: Responder, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.host = host
        self.auth = replace(auth, realm_host=auth.realm_host or host, service=auth.service or host)
        self._inside = inside
        self._clock = clock
        self._grants: dict[str, _Grant] = {}
        self._issued = 0

    def respond(self, request: Request) -> Reply | None:
        """The token, the challenge, or what is inside."""
        if request.host == self.auth.realm_host and request.path == self.auth.realm_path:
            return self._token(request)
        if request.host != self.host:
            return None
        return self._refusal(request) or self._inside.respond(request)

    def revoke_all(self) -> None:
        """Make every token given so far invalid."""
        self._grants.clear()

    def _refusal(self, request: Request) -> Reply | None:
        target = read_target(request.path)
        needed = f"repository:{target.repository}:pull" if target.repository else ""
        scheme, _, token = request.fields.get("Authorization").partition(" ")
        grant = self._grants.get(token.strip()) if scheme.lower() == "bearer" else None
        if grant is None or grant.expires <= self._clock():
            return self._challenge(needed, "invalid_token" if scheme else "")
        if needed and needed not in grant.scopes:
            return self._challenge(needed, "insufficient_scope")
        return None

    def _challenge(self, scope: str, reason: str) -> Reply:
        parts = {"realm": f"https://{self.auth.realm_host}{self.auth.realm_path}", "service": self.auth.service}
        parts |= {"scope": scope} if scope else {}
        parts |= {"error": reason} if reason else {}
        value = "Bearer " + ",".join(f'{name}="{text}"' for name, text in parts.items())
        return error(401, "UNAUTHORIZED", "authentication required", fields={"WWW-Authenticate": value})

    def _token(self, request: Request) -> Reply:
        if request.method == "POST" and not self.auth.is_post_supported:
            return error(404, "UNSUPPORTED", "no such endpoint", kind="token")
        asked = request.parameters()
        if request.method == "POST":
            asked = urllib.parse.parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True)[:100]
            user = self._form_user(dict(asked))
        else:
            user = basic_user(request.fields.get("Authorization"), self.auth.users)
        if user is None:
            refused = {"WWW-Authenticate": f'Basic realm="{self.auth.realm_host}"'}
            return error(401, "UNAUTHORIZED", "incorrect username or password", fields=refused, kind="token")
        return self._grant(asked, user, is_form=request.method == "POST")

    def _grant(self, asked: list[tuple[str, str]], user: str, *, is_form: bool) -> Reply:
        scopes: set[str] = set()
        for name, value in asked:
            for scope in value.split(" ") if name == "scope" else ():
                scopes |= self._allowed(scope, user)
        self._issued += 1
        token = f"tape-token-{self._issued}"
        self._grants[token] = _Grant(frozenset(scopes), self._clock() + self.auth.lifetime_seconds)
        answer: dict[str, object] = {"access_token": token} if is_form else {"token": token, "access_token": token}
        answer["expires_in"] = self.auth.lifetime_seconds
        if user and ("offline_token", "true") in asked:
            answer["refresh_token"] = next(
                (key for key, owner in self.auth.identity_tokens.items() if owner == user), f"tape-refresh-{user}"
            )
        return json_reply(answer, kind="token")

    def _form_user(self, form: dict[str, str]) -> str | None:
        if form.get("grant_type") == "refresh_token":
            return self.auth.identity_tokens.get(form.get("refresh_token", ""))
        if form.get("grant_type") == "password":
            user = form.get("username", "")
            return user if user in self.auth.users and self.auth.users[user] == form.get("password") else None
        return None

    def _allowed(self, scope: str, user: str) -> set[str]:
        found = _SCOPE.fullmatch(scope)
        if found is None or not (user or self.auth.is_anonymous_allowed):
            return set()
        actions = {"pull", "push", "delete"} if user else {"pull"}
        wanted = set(found["actions"].split(","))
        return {f"repository:{found['name']}:{action}" for action in actions if action in wanted or "*" in wanted}


class BasicGate:
    """Guards one logical host with user and password."""

    def __init__(self, host: str, auth: BasicAuth, inside: Responder) -> None:
        self.host = host
        self._auth = auth
        self._inside = inside

    def respond(self, request: Request) -> Reply | None:
        """The challenge, or what is inside."""
        if request.host != self.host:
            return None
        if not basic_user(request.fields.get("Authorization"), self._auth.users):
            fields = {"WWW-Authenticate": f'Basic realm="{self.host}"'}
            return error(401, "UNAUTHORIZED", "authentication required", fields=fields)
        return self._inside.respond(request)


def basic_user(header: str, users: Mapping[str, str]) -> str | None:
    """The user of a Basic header: ``""`` without a header, None when the credentials are wrong."""
    if not header:
        return ""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return user if colon and user in users and users[user] == password else None
