"""Answers a registry's 401 (distribution's token specification; Basic as RFC 7617).

Bearer goes before Basic. If a Bearer challenge can't be satisfied, that is an error, never a silent switch to Basic or
to anonymous access. For one request each distinct challenge is answered with a fresh token once, so a registry that
refuses its own tokens ends in an error and not in a loop. Secrets are bound to the origin that asked for them.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.errors import AuthenticationError, InvalidInputError, ProtocolError
from imagestore.registry.auth.challenge import parse_challenges, parse_scopes, wanted_scopes
from imagestore.registry.auth.realm import Realm, check_address, is_same_party
from imagestore.registry.auth.token_service import TokenService, basic_header
from imagestore.registry.auth.tokens import Renewal, TokenCache, TokenKey, TokenReply
from imagestore.registry.credentials.model import HUB_NAMES, Anonymous, FoundCredential, Target
from imagestore.registry.policy import AuthPolicy, RealmTrust
from imagestore.registry.transport import addresses, urls
from imagestore.util.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from imagestore.registry.auth.challenge import Challenge
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.registry.transport.addresses import Origin
    from imagestore.registry.transport.messages import Sender
    from imagestore.util.cancel import CancelToken

#: Challenges answered for one request; two are normal (no token yet; one more scope).
MAX_ANSWERS: Final = 4
_MAX_KNOWN: Final = 4096

K = TypeVar("K")
V = TypeVar("V")

# Never gets a secret.
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _RequestState:
    """One request of one thread: its last authorization, how often it was refused, and the tokens obtained for it."""

    header: str = field(repr=False)
    refusals: int = 0
    fresh: set[TokenKey] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Remembered:
    """The authorization for the next requests: a fixed header, or the key of a remembered token; and its source."""

    header: Secret
    key: TokenKey | None = None
    provenance: str = ""


def target_of(origin: Origin, repository: str) -> Target:
    """The registry host and repository whose credentials an origin needs.

    >>> from imagestore.registry.transport.addresses import Origin
    >>> target_of(Origin("https", "registry-1.docker.io", 443), "library/python").host
    'docker.io'
    """
    host = urls.host_port(origin)
    return Target(HUB_NAMES[0] if host in HUB_NAMES else host, repository)


class RegistryAuthenticator:
    """The Authenticator for registries; thread-safe.

    One object is for one set of credentials: explicit credentials of another caller need another object, so that no
    caller uses another one's login. A thread calls authorization() once for each request and then respond() for each
    401 that the request gets.

    Registries name token services, so the ``sender`` should check the addresses it connects to if the registry is
    public. Credentials are looked up only after a challenge.
    """

    def __init__(
        self,
        sender: Sender,
        credentials: CredentialLookup,
        *,
        policy: AuthPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sender = sender
        self._credentials = credentials
        self._policy = policy or AuthPolicy()
        self._tokens = TokenCache(clock=clock)
        self._fingerprint_key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._known: dict[tuple[Origin, str], _Remembered] = {}
        self._renewals: dict[tuple[str, str, str], Renewal] = {}
        self._warned: set[tuple[Origin, Origin]] = set()
        self._threads = threading.local()

    def authorization(self, origin: Origin, repository: str) -> str:
        """The header value for a new request; empty when nothing is known, or the token is due for renewal.

        Without the header the registry repeats its challenge, and respond() renews.
        """
        with self._lock:
            known = self._known.get((origin, repository))
        header = self._header(known) if known is not None else ""
        self._start(origin, repository, header)
        return header

    def _header(self, known: _Remembered) -> str:
        if known.key is None:
            return known.header.reveal()
        token = self._tokens.get(known.key)
        return f"Bearer {token.value.reveal()}" if token is not None else ""

    def provenance(self, origin: Origin, repository: str) -> str:
        """See Authenticator."""
        with self._lock:
            known = self._known.get((origin, repository))
        return known.provenance if known is not None else ""

    def forget(self, origin: Origin, repository: str, refused: str) -> None:
        """See Authenticator. A token that another thread has obtained since then is kept."""
        with self._lock:
            known = self._known.get((origin, repository))
            if known is None:
                return
            if known.key is not None:
                self._tokens.discard(known.key, Secret(refused.removeprefix("Bearer ")))
            if self._header(known) in {"", refused}:
                del self._known[origin, repository]

    def stored_login(self, origin: Origin, repository: str, *, cancel: CancelToken) -> str:
        """See Authenticator."""
        found = self._lookup(target_of(origin, repository), cancel)
        return found.provenance if found is not None else ""

    def _lookup(self, target: Target, cancel: CancelToken) -> FoundCredential | None:
        host = self._policy.credential_hosts.get(target.host, target.host)
        return self._credentials.lookup(Target(host, target.repository), cancel=cancel)

    def respond(self, origin: Origin, repository: str, headers: httpx.Headers, *, cancel: CancelToken) -> str:
        """Answer a 401 with the header value to try next.

        Raises:
            AuthenticationError: no usable challenge, no credentials, they were refused, or the token service may not
                be trusted.
            ConfigError: the credentials on this machine can't be read.
            RateLimitedError, RegistryUnavailableError, ProtocolError: of the token service.
        """
        target = target_of(origin, repository)
        states: dict[tuple[Origin, str], _RequestState] = getattr(self._threads, "states", {})
        state = states.get((origin, repository)) or self._start(origin, repository, "")
        state.refusals += 1
        if state.refusals > MAX_ANSWERS:
            raise _error(target, f"{target.shown}: expected an end to challenges after {MAX_ANSWERS}, another came")
        try:
            challenge = _choose(parse_challenges(headers.get_list("WWW-Authenticate")), target)
        except ProtocolError as error:
            raise _error(target, f"{target.host}: {error}") from error
        found = self._lookup(target, cancel)
        if challenge.scheme == "basic":
            known, header = self._basic(origin, target, found)
        elif found is not None and found.credential.registry_token:
            header = f"Bearer {found.credential.registry_token.reveal()}"
            known = _Remembered(Secret(header))
        else:
            known, header = self._bearer(origin, target, challenge, found, state, cancel)
        if header == state.header:
            raise self._refused(target, challenge, found)
        state.header = header
        known = replace(known, provenance=found.provenance if found is not None else "")
        with self._lock:
            _put(self._known, (origin, repository), known)
        return header

    def _basic(self, origin: Origin, target: Target, found: FoundCredential | None) -> tuple[_Remembered, str]:
        if found is None:
            hint = f"{self._remedy(target, found)}; 'imagestore auth explain' shows the places that are searched"
            raise _error(target, f"{target.shown}: needs credentials for {target.host}; {self._absence}", hint)
        if not found.credential.password:
            message = f"the registry wants user name and password, {found.provenance} has only a token"
            raise _error(target, f"{target.shown}: {message}")
        self._warn_of_plain_http(origin, origin)
        header = basic_header(found.credential)
        return _Remembered(Secret(header)), header

    def _bearer(
        self,
        origin: Origin,
        target: Target,
        challenge: Challenge,
        found: FoundCredential | None,
        state: _RequestState,
        cancel: CancelToken,
    ) -> tuple[_Remembered, str]:
        realm = self._trusted_realm(origin, challenge, found)
        try:
            scopes = wanted_scopes(target.repository, parse_scopes(challenge.get("scope")))
        except InvalidInputError as error:
            raise _error(target, f"{target.host}: challenge: {error}") from error
        account = found.credential.fingerprint(self._fingerprint_key) if found is not None else ""
        key = TokenKey(origin, realm.url(), challenge.get("service"), account, scopes)
        if key in state.fresh:
            raise self._refused(target, challenge, found)
        self._tokens.discard(key, Secret(state.header.removeprefix("Bearer ")))
        remedy = self._remedy(target, found)
        service = TokenService(realm, key.service, self._sender, registry=target.host, remedy=remedy)

        def _exchange() -> TokenReply:
            return self._exchange(service, key, found, cancel)

        token, is_new = self._tokens.obtain(key, _exchange, cancel=cancel)
        if is_new:
            state.fresh.add(key)
        return _Remembered(token.value, key), f"Bearer {token.value.reveal()}"

    def _exchange(
        self, service: TokenService, key: TokenKey, found: FoundCredential | None, cancel: CancelToken
    ) -> TokenReply:
        def _fetch(refresh: Secret | None) -> TokenReply:
            return service.fetch(key.scopes, found, refresh, cancel=cancel)

        started = time.monotonic()
        if found is not None and found.credential.identity_token:
            login = (key.realm, key.service, key.account)
            with self._lock:
                renewal = _put(self._renewals, login, self._renewals.get(login) or Renewal())
            reply = renewal.exchange(_fetch, cancel=cancel)
        else:
            reply = _fetch(None)
        _log.debug(
            "token for %s scopes %s credentials %s after %.3f s",
            key.origin,
            [str(scope) for scope in key.scopes],
            found.provenance if found is not None else "none",
            time.monotonic() - started,
        )
        return reply

    def _refused(self, target: Target, challenge: Challenge, found: FoundCredential | None) -> AuthenticationError:
        # Many services answer the same for private and for missing repositories.
        missing = "does not exist, or " if target.repository else ""
        remedy = self._remedy(target, found)
        if found is None:
            message = f"{target.shown}: {missing}needs credentials; {self._absence}"
            return _error(target, message, f"check the name; for a private image {remedy}")
        reason = "don't allow this" if challenge.get("error") == "insufficient_scope" else "were refused"
        message = f"{target.shown}: {missing}the credentials from {found.provenance} {reason}"
        return _error(target, message, f"check the name, or {remedy}")

    @property
    def _absence(self) -> str:
        """Why there are no credentials."""
        is_wanted = isinstance(self._credentials, Anonymous)
        return "access was anonymous, as was asked" if is_wanted else "access was anonymous, none were found"

    def _remedy(self, target: Target, found: FoundCredential | None) -> str:
        """What to do about credentials that are missing or refused."""
        if isinstance(self._credentials, Anonymous):
            return "try without --anonymous, with a stored login"
        if found is not None and found.is_given:
            return "check the user name and the password that were given"
        login = f"'imagestore login {target.host}'"
        return f"run {login}" if found is None else f"log in again with {login}"

    def _trusted_realm(self, origin: Origin, challenge: Challenge, found: FoundCredential | None) -> Realm:
        try:
            realm = Realm.parse(challenge.get("realm"))
        except AuthenticationError as error:
            raise AuthenticationError(f"{origin}: {error}", host=origin.host, status=401) from error
        check_address(realm, origin, self._policy.trusted_realms)
        if found is not None:
            self._warn_of_plain_http(origin, realm.origin)
        if found is None or is_same_party(realm, origin, self._policy.trusted_realms):
            return realm
        if self._policy.realm_trust is RealmTrust.STRICT:
            raise AuthenticationError(
                f"{origin}: names token service {realm.origin} on another host or port; "
                f"credentials from {found.provenance} were not sent",
                host=origin.host,
                hint=f"if they belong together, allow token service {realm.origin.host} for {origin.host}",
            )
        self._warn(origin, realm.origin, "credentials go to token service %s on another host or port, named by %s")
        return realm

    def _warn_of_plain_http(self, origin: Origin, to: Origin) -> None:
        if to.scheme == "http" and not addresses.is_loopback_name(to.host):
            self._warn(origin, to, "password goes to %s without encryption (plain http registry %s)")

    def _warn(self, origin: Origin, other: Origin, message: str) -> None:
        with self._lock:
            is_first = (origin, other) not in self._warned
            if is_first and len(self._warned) < _MAX_KNOWN:
                self._warned.add((origin, other))
        if is_first:
            _log.warning(message, other, origin)

    def _start(self, origin: Origin, repository: str, header: str) -> _RequestState:
        states: dict[tuple[Origin, str], _RequestState] | None = getattr(self._threads, "states", None)
        if states is None or len(states) >= _MAX_KNOWN:
            states = self._threads.states = {}
        state = states[(origin, repository)] = _RequestState(header)
        return state


def _choose(challenges: tuple[Challenge, ...], target: Target) -> Challenge:
    """The challenge to answer: Bearer with a realm, else Basic."""
    for challenge in challenges:
        if challenge.scheme == "bearer" and challenge.get("realm"):
            return challenge
    for challenge in challenges:
        if challenge.scheme == "basic":
            return challenge
    offered = ", ".join(dict.fromkeys(challenge.scheme[:40] for challenge in challenges)) or "no challenge"
    message = f"expected a Bearer challenge with a realm, or a Basic one; offered: {offered}"
    raise _error(target, f"{target.host}: {message}")


def _error(target: Target, message: str, hint: str = "") -> AuthenticationError:
    return AuthenticationError(message, host=target.host, status=401, hint=hint)


def _put(known: dict[K, V], key: K, value: V) -> V:
    """Insert a value as the newest; drop the oldest if there are too many."""
    known.pop(key, None)
    if len(known) >= _MAX_KNOWN:
        del known[next(iter(known))]
    known[key] = value
    return value
