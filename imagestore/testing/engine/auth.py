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

from imagestore.oci.reference import DOCKER_HUB
from imagestore.testing.engine.distribution import HUB_HOSTS
from imagestore.testing.engine.messages import Reply, Request, error, json_reply
from imagestore.testing.engine.urls import read_target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from imagestore.testing.engine.distribution import Responder

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
        identity_tokens: refresh token to user, for the OAuth2 form; besides, user ``x`` always has ``tape-refresh-x``.
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
    service: str


@dataclass(slots=True)
class TokenDesk:
    """What one token service has given out; registries that name the same realm share it.

    Attributes:
        services: names of the registries that it serves.
    """

    services: set[str] = field(default_factory=set)
    _grants: dict[str, _Grant] = field(default_factory=dict)
    _issued: int = 0

    def issue(self, scopes: frozenset[str], expires: float, service: str) -> str:
        """A new token."""
        self._issued += 1
        token = f"tape-token-{self._issued}"
        self._grants[token] = _Grant(scopes, expires, service)
        return token

    def find(self, token: str, service: str) -> _Grant | None:
        """What a token of this service is good for; None when it isn't one."""
        grant = self._grants.get(token)
        return grant if grant is not None and grant.service == service else None

    def revoke_all(self) -> None:
        """Make every token given so far invalid."""
        self._grants.clear()


class TokenGate:
    """Guards one logical host with tokens, and is its token service.

    Args:
        host: logical host; Docker Hub's other names are guarded with ``docker.io``.
        auth: the rules.
        inside: answers who may come in.
        clock: gives monotonic seconds.
        desk: shared by the gates whose realm is the same; its own by default.
    """

    def __init__(
        self,
        host: str,
        auth: TokenAuth,
        inside: Responder,
        *,
        clock: Callable[[], float] = time.monotonic,
        desk: TokenDesk | None = None,
    ) -> None:
        self.host = host
        self.auth = replace(auth, realm_host=auth.realm_host or host, service=auth.service or host)
        self._inside = inside
        self._clock = clock
        self._desk = desk if desk is not None else TokenDesk()
        self._desk.services.add(self.auth.service)

    def respond(self, request: Request) -> Reply | None:
        """The token, the challenge, or what is inside."""
        if (
            canonical_host(request.host) == canonical_host(self.auth.realm_host)
            and request.path == self.auth.realm_path
        ):
            asked = self._asked(request)
            return self._token(request, asked) if self._is_for_me(asked) else None
        if canonical_host(request.host) != canonical_host(self.host):
            return None
        return self._refusal(request) or self._inside.respond(request)

    def revoke_all(self) -> None:
        """Make every token given so far invalid."""
        self._desk.revoke_all()

    def _refusal(self, request: Request) -> Reply | None:
        target = read_target(request.path)
        needed = f"repository:{target.repository}:pull" if target.repository else ""
        scheme, _, token = request.fields.get("Authorization").partition(" ")
        grant = self._desk.find(token.strip(), self.auth.service) if scheme.lower() == "bearer" else None
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

    def _asked(self, request: Request) -> list[tuple[str, str]]:
        if request.method != "POST":
            return request.parameters()
        return urllib.parse.parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True)[:100]

    def _is_for_me(self, asked: list[tuple[str, str]]) -> bool:
        """Whether the request names this gate's service, or none that another gate of the same realm has."""
        service = dict(asked).get("service", "")
        return service == self.auth.service or service not in self._desk.services

    def _token(self, request: Request, asked: list[tuple[str, str]]) -> Reply:
        if request.method == "POST" and not self.auth.is_post_supported:
            return error(404, "UNSUPPORTED", "no such endpoint", kind="token")
        if request.method == "POST":
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
        token = self._desk.issue(frozenset(scopes), self._clock() + self.auth.lifetime_seconds, self.auth.service)
        answer: dict[str, object] = {"access_token": token} if is_form else {"token": token, "access_token": token}
        answer["expires_in"] = self.auth.lifetime_seconds
        # The form has the OAuth2 document's name for it, the query the token document's.
        wish = ("access_type", "offline") if is_form else ("offline_token", "true")
        if user and wish in asked:
            answer["refresh_token"] = next(
                (key for key, owner in self.auth.identity_tokens.items() if owner == user), identity_token(user)
            )
        return json_reply(answer, kind="token")

    def _form_user(self, form: dict[str, str]) -> str | None:
        if form.get("grant_type") == "refresh_token":
            known = {identity_token(user): user for user in self.auth.users} | dict(self.auth.identity_tokens)
            return known.get(form.get("refresh_token", ""))
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
        if canonical_host(request.host) != canonical_host(self.host):
            return None
        if not basic_user(request.fields.get("Authorization"), self._auth.users):
            fields = {"WWW-Authenticate": f'Basic realm="{self.host}"'}
            return error(401, "UNAUTHORIZED", "authentication required", fields=fields)
        return self._inside.respond(request)


def make_gates(auths: Mapping[str, BasicAuth | TokenAuth], inside: Responder) -> list[Responder]:
    """A gate per logical host; those that name the same realm share one token service."""
    desks: dict[tuple[str, str], TokenDesk] = {}
    out: list[Responder] = []
    for host, auth in auths.items():
        if isinstance(auth, BasicAuth):
            out.append(BasicGate(host, auth, inside))
        else:
            desk = desks.setdefault((auth.realm_host or host, auth.realm_path), TokenDesk())
            out.append(TokenGate(host, auth, inside, desk=desk))
    return out


def identity_token(user: str) -> str:
    """The identity (refresh) token that every user has besides those that TokenAuth names."""
    return f"tape-refresh-{user}"


def canonical_host(host: str) -> str:
    """The host whose rules count: Docker Hub's other names are guarded like ``docker.io``."""
    return DOCKER_HUB if host in HUB_HOSTS else host


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
