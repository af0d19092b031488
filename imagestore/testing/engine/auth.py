"""Basic and token authentication as registries do it (registry token and OAuth2 documents).

Tokens are placeholders (``tape-token-1``, ...), granted for the intersection of what was asked and what is allowed, and
expire by the clock. The realm may be on another logical host.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from imagestore.testing.engine.distribution import canonical_host
from imagestore.testing.engine.messages import Reply, Request, error, json_reply
from imagestore.testing.engine.urls import parse_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from imagestore.testing.engine.messages import Responder

_SCOPE: Final = re.compile(r"repository(?:\([a-z]+\))?:(?P<name>.{1,300}):(?P<actions>[a-z,*]{1,60})")


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """Every request needs user and password; ``users`` has the password of each."""

    users: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenAuth:
    """Every request needs a bearer token from the realm.

    Attributes:
        users: user to password.
        identity_tokens: refresh token to user, for the OAuth2 form; user ``x`` also has ``tape-refresh-x``.
        realm_host: logical host of the token service; the registry's own when empty.
        realm_path: path of the token service.
        service: what the challenge names; the registry's host when empty.
        lifetime_seconds: how long a token is good for.
        allow_anonymous: whether a token to pull is given to everyone.
        allow_post: whether the OAuth2 POST form exists; else it answers 404, as some services do.
    """

    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    identity_tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    realm_host: str = ""
    realm_path: str = "/token"
    service: str = ""
    lifetime_seconds: int = 300
    allow_anonymous: bool = True
    allow_post: bool = True


@dataclass(frozen=True, slots=True)
class _Grant:
    scopes: frozenset[str]
    expires: float
    service: str


@dataclass(frozen=True, slots=True)
class _TokenRealm:
    """The tokens that one token service has given out, and the services (registries) that it serves."""

    services: set[str] = field(default_factory=set)
    grants: dict[str, _Grant] = field(default_factory=dict)


class TokenGate:
    """Guards one logical host with tokens, and is its token service.

    Gates whose realm is the same share what it has given out. Docker Hub's other names are guarded with ``docker.io``.
    """

    def __init__(
        self,
        host: str,
        auth: TokenAuth,
        inside: Responder,
        *,
        clock: Callable[[], float] = time.monotonic,
        realm: _TokenRealm | None = None,
    ) -> None:
        self.host = host
        self.auth = replace(auth, realm_host=auth.realm_host or host, service=auth.service or host)
        self._inside = inside
        self._clock = clock
        self._realm = realm or _TokenRealm()
        self._realm.services.add(self.auth.service)

    def respond(self, request: Request) -> Reply | None:
        """The token, the challenge, or what is inside."""
        host = canonical_host(request.host)
        if host == canonical_host(self.auth.realm_host) and request.path == self.auth.realm_path:
            asked = request.form() if request.method == "POST" else request.parameters()
            service = dict(asked).get("service", "")
            # One that another gate of the same realm guards is for that gate to answer.
            is_for_another = service != self.auth.service and service in self._realm.services
            return None if is_for_another else self._token(request, asked)
        if host != canonical_host(self.host):
            return None
        return self._refusal(request) or self._inside(request)

    def _refusal(self, request: Request) -> Reply | None:
        needed = needed_actions(request)
        scheme, _, token = request.fields.get("Authorization").partition(" ")
        grant = self._realm.grants.get(token.strip()) if scheme.lower() == "bearer" else None
        if grant is None or grant.service != self.auth.service or grant.expires <= self._clock():
            return self._challenge(scope_text(needed), "invalid_token" if scheme else "")
        if not {f"{name}:{action}" for name, actions in needed.items() for action in actions} <= grant.scopes:
            return self._challenge(scope_text(needed), "insufficient_scope")
        return None

    def _challenge(self, scope: str, reason: str) -> Reply:
        parts = {"realm": f"https://{self.auth.realm_host}{self.auth.realm_path}", "service": self.auth.service}
        parts |= {"scope": scope, "error": reason}
        value = "Bearer " + ",".join(f'{name}="{text}"' for name, text in parts.items() if text)
        return error(401, "UNAUTHORIZED", "authentication required", fields={"WWW-Authenticate": value})

    def _token(self, request: Request, asked: list[tuple[str, str]]) -> Reply:
        is_form = request.method == "POST"
        if is_form and not self.auth.allow_post:
            return error(404, "UNSUPPORTED", "no such endpoint", kind="token")
        header = request.fields.get("Authorization")
        user = self._form_user(dict(asked)) if is_form else _basic_user(header, self.auth.users)
        if user is None:
            refused = {"WWW-Authenticate": f'Basic realm="{self.auth.realm_host}"'}
            return error(401, "UNAUTHORIZED", "incorrect username or password", fields=refused, kind="token")
        return self._grant(asked, user, is_form=is_form)

    def _grant(self, asked: list[tuple[str, str]], user: str, *, is_form: bool) -> Reply:
        scopes: set[str] = set()
        for name, value in asked:
            for scope in value.split(" ") if name == "scope" else ():
                scopes |= self._allowed(scope, user)
        token = f"tape-token-{len(self._realm.grants) + 1}"
        expires = self._clock() + self.auth.lifetime_seconds
        self._realm.grants[token] = _Grant(frozenset(scopes), expires, self.auth.service)
        answer: dict[str, object] = {"access_token": token} if is_form else {"token": token, "access_token": token}
        answer["expires_in"] = self.auth.lifetime_seconds
        # The form has the OAuth2 document's name for it, the query the token document's.
        wanted = ("access_type", "offline") if is_form else ("offline_token", "true")
        if user and wanted in asked:
            owned = [key for key, owner in self.auth.identity_tokens.items() if owner == user]
            answer["refresh_token"] = next(iter(owned), _identity_token(user))
        return json_reply(answer, kind="token")

    def _form_user(self, form: dict[str, str]) -> str | None:
        if form.get("grant_type") == "refresh_token":
            known = {_identity_token(user): user for user in self.auth.users} | dict(self.auth.identity_tokens)
            return known.get(form.get("refresh_token", ""))
        if form.get("grant_type") == "password":
            user = form.get("username", "")
            return user if user in self.auth.users and self.auth.users[user] == form.get("password") else None
        return None

    def _allowed(self, scope: str, user: str) -> set[str]:
        found = _SCOPE.fullmatch(scope)
        if found is None or not (user or self.auth.allow_anonymous):
            return set()
        actions = {"pull", "push", "delete"} if user else {"pull"}
        wanted = set(found["actions"].split(","))
        return {f"repository:{found['name']}:{action}" for action in actions if action in wanted or "*" in wanted}


def needed_actions(request: Request) -> dict[str, tuple[str, ...]]:
    """The actions that a request needs, by resource: a mount also reads the repository that it takes the blob from."""
    target = parse_path(request.path)
    if not target.repository:
        return {}
    by_method: dict[str, tuple[str, ...]] = {"GET": ("pull",), "HEAD": ("pull",), "DELETE": ("delete",)}
    needed = {f"repository:{target.repository}": by_method.get(request.method, ("pull", "push"))}
    source = dict(request.parameters()).get("from", "")
    if target.kind == "upload" and source:
        needed.setdefault(f"repository:{source}", ("pull",))
    return needed


def scope_text(needed: Mapping[str, tuple[str, ...]]) -> str:
    """Actions by resource as a challenge names them.

    >>> scope_text({"repository:a": ("pull", "push"), "repository:b": ("pull",)})
    'repository:a:pull,push repository:b:pull'
    """
    return " ".join(f"{name}:{','.join(actions)}" for name, actions in needed.items())


def _basic_gate(host: str, auth: BasicAuth, inside: Responder) -> Responder:
    """Guards one logical host with user and password."""

    def _respond(request: Request) -> Reply | None:
        if canonical_host(request.host) != canonical_host(host):
            return None
        if not _basic_user(request.fields.get("Authorization"), auth.users):
            fields = {"WWW-Authenticate": f'Basic realm="{host}"'}
            return error(401, "UNAUTHORIZED", "authentication required", fields=fields)
        return inside(request)

    return _respond


def make_gates(auths: Mapping[str, BasicAuth | TokenAuth], inside: Responder) -> list[Responder]:
    """A gate for each logical host; those that name the same realm share one token service."""
    realms: dict[tuple[str, str], _TokenRealm] = {}
    out: list[Responder] = []
    for host, auth in auths.items():
        if isinstance(auth, BasicAuth):
            out.append(_basic_gate(host, auth, inside))
        else:
            realm = realms.setdefault((auth.realm_host or host, auth.realm_path), _TokenRealm())
            out.append(TokenGate(host, auth, inside, realm=realm).respond)
    return out


def _identity_token(user: str) -> str:
    """The identity (refresh) token that every user has in addition to those that TokenAuth names."""
    return f"tape-refresh-{user}"


def _basic_user(header: str, users: Mapping[str, str]) -> str | None:
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
