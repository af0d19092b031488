"""One exchange with a token service (distribution's token and OAuth2 specifications).

===================  =========================================================================
identity token       POST ``grant_type=refresh_token``; there is no other way
user and password    GET with Basic; when that form is not there (404, 405), POST
                     ``grant_type=password``
nothing              GET without credentials
===================  =========================================================================

Redirects stay on the service's origin. A service's error text is not shown: it may quote the request.
"""

from __future__ import annotations

import base64
import datetime
import json
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from imagestore.errors import AuthenticationError, ProtocolError, RateLimitedError, RegistryUnavailableError
from imagestore.registry.auth.realm import Realm
from imagestore.registry.auth.tokens import MAX_REPLY_BYTES, TokenReply, parse_reply
from imagestore.registry.content_coding import coding_hint, read_decoded
from imagestore.registry.retry import parse_retry_after
from imagestore.registry.transport import urls
from imagestore.registry.transport.messages import make_request, redirected

if TYPE_CHECKING:
    import httpx

    from imagestore.registry.auth.challenge import Scope
    from imagestore.registry.credentials.model import Credential, FoundCredential
    from imagestore.registry.transport.messages import Response, Sender
    from imagestore.util.cancel import CancelToken
    from imagestore.util.secret import Secret

CLIENT_ID: Final = "imagestore"
MAX_REDIRECTS: Final = 3
_MAX_ERROR_BYTES: Final = 64 * 1024
# Services without the GET form answer one of these.
_NO_GET_FORM: Final = frozenset({404, 405})
_ANY_METHOD_REDIRECTS: Final = frozenset({307, 308})
_GET_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
# Codes of RFC 6749 section 5.2 and of the distribution specification; no other text of a service is shown, because a
# hostile one could echo the password it was sent.
_CODES: Final = frozenset(
    {"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type"}
    | {"invalid_scope", "access_denied", "unauthorized", "denied", "unsupported", "toomanyrequests", "name_unknown"}
)


def basic_header(credential: Credential) -> str:
    """``Authorization`` for user name and password (RFC 7617, UTF-8)."""
    pair = f"{credential.username}:{credential.password.reveal()}".encode()
    return f"Basic {base64.b64encode(pair).decode('ascii')}"


class TokenService:
    """Asks one token service on behalf of one registry."""

    def __init__(self, realm: Realm, service: str, sender: Sender, *, registry: str, remedy: str) -> None:
        self._realm = realm
        self._service = service
        self._sender = sender
        self._registry = registry
        self._remedy = remedy
        self._where = f"token service {realm.origin} of {registry}"

    def fetch(
        self, scopes: tuple[Scope, ...], found: FoundCredential | None, refresh: Secret | None, *, cancel: CancelToken
    ) -> TokenReply:
        """Get a token; ``refresh`` is the newest refresh token, if the service has replaced the identity token.

        The service may grant less than the scopes without saying so.

        Raises:
            AuthenticationError: refused, or the answer can't be used.
            RateLimitedError, RegistryUnavailableError, ProtocolError: as the registry's own answers.
        """
        if found is None:
            return self._get(scopes, None, cancel)
        credential = found.credential
        if credential.identity_token:
            token = (refresh or credential.identity_token).reveal()
            return self._post(scopes, {"grant_type": "refresh_token", "refresh_token": token}, found, cancel)
        try:
            return self._get(scopes, found, cancel)
        except AuthenticationError as error:
            if error.status not in _NO_GET_FORM:
                raise
        password = credential.password.reveal()
        form = {"grant_type": "password", "username": credential.username, "password": password}
        return self._post(scopes, form, found, cancel)

    def _get(self, scopes: tuple[Scope, ...], found: FoundCredential | None, cancel: CancelToken) -> TokenReply:
        query = [("service", self._service)] if self._service else []
        query += [("scope", str(scope)) for scope in scopes]
        query.append(("client_id", CLIENT_ID))
        headers: tuple[tuple[str, str], ...] = (("Accept", "application/json"),)
        if found is not None:
            query.append(("account", found.credential.username))
            headers += (("Authorization", basic_header(found.credential)),)
        return self._exchange(make_request("GET", self._realm.url(urlencode(query)), headers), found, cancel)

    def _post(
        self, scopes: tuple[Scope, ...], grant: dict[str, str], found: FoundCredential, cancel: CancelToken
    ) -> TokenReply:
        form = {**grant, "client_id": CLIENT_ID}
        if self._service:
            form["service"] = self._service
        if scopes:
            form["scope"] = " ".join(str(scope) for scope in scopes)
        headers = (("Accept", "application/json"), ("Content-Type", "application/x-www-form-urlencoded"))
        request = make_request("POST", self._realm.url(), headers, urlencode(form).encode("ascii"))
        return self._exchange(request, found, cancel)

    def _exchange(self, request: httpx.Request, found: FoundCredential | None, cancel: CancelToken) -> TokenReply:
        allowed = _GET_REDIRECTS if request.method == "GET" else _ANY_METHOD_REDIRECTS
        for _ in range(MAX_REDIRECTS + 1):
            with self._sender.send(request, cancel=cancel) as response:
                if 200 <= response.status < 300:
                    return _reply(response, self._where)
                if response.status not in allowed:
                    raise self._failure(response, found)
                location = response.headers.get("Location", "")
            try:
                target = urls.join(str(request.url), location)
                origin = urls.origin_of(target)
            except ProtocolError:
                # Without that error, which shows the address.
                message = f"{self._where}: redirects to an unusable address; expected an answer from its own origin"
                raise AuthenticationError(message, host=self._registry) from None
            if origin != self._realm.origin:
                message = f"{self._where}: redirects to {origin}; expected an answer from its own origin"
                raise AuthenticationError(message, host=self._registry)
            request = redirected(request, target)
        message = f"{self._where}: expected at most {MAX_REDIRECTS} redirects, more came"
        raise AuthenticationError(message, host=self._registry)

    def _failure(
        self, response: Response, found: FoundCredential | None
    ) -> AuthenticationError | RateLimitedError | RegistryUnavailableError:
        word = _error_code(response)
        code = f" ({word})" if word else ""
        where, status, host = self._where, response.status, self._registry
        pause = parse_retry_after(response.headers.get("Retry-After", ""), datetime.datetime.now(datetime.UTC))
        hint = f"the token service asks to wait {pause:.0f} s" if pause is not None else ""
        if status == 429:
            message = f"{where}: refuses for too many requests{code}"
            return RateLimitedError(message, host=host, status=status, hint=hint, retry_after=pause)
        if status >= 500 or status == 408:
            message = f"{where}: answered status {status}{code}"
            return RegistryUnavailableError(message, host=host, status=status, hint=hint, retry_after=pause)
        if found is None:
            message = f"{where}: refuses anonymous access with status {status}{code}"
            return AuthenticationError(message, host=host, status=status, hint=self._remedy)
        message = f"{where}: refuses the credentials from {found.provenance} with status {status}{code}"
        hint = f"{self._remedy}; a public image can also be had without credentials (--anonymous)"
        return AuthenticationError(message, host=host, status=status, hint=hint)


def _reply(response: Response, where: str) -> TokenReply:
    body = read_decoded(response, MAX_REPLY_BYTES)
    try:
        return parse_reply(body, where)
    except AuthenticationError as error:
        error.hint = coding_hint(response)
        raise


def _error_code(response: Response) -> str:
    """The machine-readable code of an error answer, or an empty text."""
    try:
        value = json.loads(read_decoded(response, _MAX_ERROR_BYTES).decode("utf-8"))
    except (ValueError, RecursionError, ProtocolError, RegistryUnavailableError):
        return ""
    if not isinstance(value, dict):
        return ""
    listed = value.get("errors")
    first = listed[0] if isinstance(listed, list) and listed else None
    code = first.get("code") if isinstance(first, dict) else value.get("error")
    return code.lower() if isinstance(code, str) and code.lower() in _CODES else ""
