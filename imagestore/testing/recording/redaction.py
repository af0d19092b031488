"""Redaction of what stands around a body: queries and forms, addresses, credentials, headers."""

from __future__ import annotations

import re
import urllib.parse
from typing import TYPE_CHECKING, Final

from imagestore.testing.engine.urls import PLAIN_PARAMETERS, is_empty_parameter, parse_path
from imagestore.testing.recording.placeholders import PLAIN_HEADERS, PLAIN_REQUEST_HEADERS, SECRET_HEADERS
from imagestore.testing.recording.secret_guard import SecretLeakError, has_random_part, shown_name

if TYPE_CHECKING:
    from collections.abc import Container

    from imagestore.testing.engine.messages import Request
    from imagestore.testing.recording.placeholders import Vault

_SPECIFIC: Final = {
    "account": "user",
    "username": "user",
    "password": "password",
    "refresh_token": "token",
    "access_token": "token",
    "token": "token",
    "client_id": "client",
}
_LINK_TARGET: Final = re.compile(r"<([^>]*)>")
_CHALLENGE_PART: Final = re.compile(r'([A-Za-z_-]{1,40})=("(?:[^"\\]|\\.)*"|[^\s,"]+)')
# A challenge that is one value instead of parameters (token68, RFC 9110 section 11.2), as Negotiate has it; or a quoted
# value, which is passed over as a whole: sentences in it have commas too.
_CHALLENGE_VALUE: Final = re.compile(
    r'= *"(?:[^"\\]|\\.)*"|((?:^|,) *[A-Za-z0-9-]{1,40} +)([A-Za-z0-9+/._~-]{2,}={0,2})(?= *(?:,|$))'
)
_PLAIN_CHALLENGE: Final = frozenset({"charset", "error", "error_description", "scope", "service"})
# An entity tag that is a digest or a counter; any other one may be a session's name.
_PLAIN_ETAG: Final = re.compile(
    r'(?:W/)?"?(?:sha(?:256|384|512):)?(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64,128}|[0-9]{1,10})"?'
)
_CONTENT: Final = frozenset({"manifest", "blob", "tags", "referrers", "ping", "catalog"})
#: The kind of a parameter that no table names: it may be a signature.
_UNKNOWN: Final = "signed"
_AUTHORIZATION: Final = "request header Authorization"
_AUTH_NAMES: Final = {"basic": "basic", "bearer": "token"}


def redact_query(query: str, vault: Vault, plain: Container[str] = ()) -> str:
    """A query or form with the values of every parameter that isn't known to be plain replaced."""
    if not query:
        return ""
    return "&".join(_redact_pair(pair, vault, plain) for pair in query.split("&"))


def _redact_pair(pair: str, vault: Vault, plain: Container[str]) -> str:
    name, equals, value = pair.partition("=")
    plain_name = urllib.parse.unquote_plus(name).lower()
    if plain_name in PLAIN_PARAMETERS or plain_name in plain or not pair:
        return pair
    if not value.strip("="):
        # No value at all: the name itself may be the secret, unless it is a word with an empty value.
        return pair if is_empty_parameter(pair) else vault.mark(_UNKNOWN, urllib.parse.unquote(pair))
    value = urllib.parse.unquote_plus(value)
    source = f"parameter {shown_name(plain_name)}"
    return f"{name}{equals}{vault.mark(_SPECIFIC.get(plain_name, _UNKNOWN), value, source)}"


def redact_address(address: str, vault: Vault, plain: Container[str] = ()) -> str:
    """An address (absolute or relative) without user info, its query redacted, its fragment dropped."""
    try:
        parts = urllib.parse.urlsplit(address)
        user, password = parts.username, parts.password
    except ValueError:
        return vault.mark("address", address)
    if user is not None or password is not None:
        vault.mark("user", user or "")
        vault.mark("password", urllib.parse.unquote(password or ""), "password of an address")
    # Not written, and too ordinary a word to be looked for elsewhere.
    vault.mark("private", parts.fragment)
    place = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, place, parts.path, redact_query(parts.query, vault, plain), ""))


def check_address(address: str, place: str, plain: Container[str]) -> None:
    """Refuse an address whose path holds a secret; what a registry's own addresses name is none.

    Raises:
        SecretLeakError: a part of the path looks random, or has parameters.
    """
    try:
        path = urllib.parse.urlsplit(address.partition("?")[0].partition("#")[0]).path
    except ValueError:
        return  # no address at all; redact_address() replaces it as a whole
    if path.startswith("/v2/") and parse_path(path).kind in _CONTENT:
        return
    if has_random_part(path, plain):
        raise SecretLeakError(place, "an unclassified random path part")


def redact_authorization(value: str, vault: Vault) -> str:
    """A credential as its scheme and a placeholder."""
    if not value:
        return ""
    scheme, blank, secret = value.partition(" ")
    if not blank:
        return vault.mark("credential", value, _AUTHORIZATION)
    return f"{scheme} {vault.mark(_AUTH_NAMES.get(scheme.lower(), 'credential'), secret.strip(), _AUTHORIZATION)}"


def learn_request(request: Request, vault: Vault, plain: Container[str]) -> None:
    """Remember every value in a request's headers that may be a credential; Authorization has a place of its own."""
    for name, value in request.fields.items:
        lower = name.lower()
        source = f"request header {shown_name(name)}"
        if lower == "cookie":
            for cookie in value.split(";"):
                key, equals, text = cookie.strip().partition("=")
                vault.learn((text if equals else key).strip('"'), source)
        elif lower == "proxy-authorization":
            scheme, _, secret = value.partition(" ")
            vault.mark(_AUTH_NAMES.get(scheme.lower(), "credential"), secret.strip(), source)
        elif lower != "authorization" and lower not in PLAIN_REQUEST_HEADERS and lower not in plain:
            vault.learn(value.strip(), source)


def redact_headers(
    request: Request, headers: tuple[tuple[str, str], ...], vault: Vault, plain: Container[str]
) -> tuple[tuple[str, str], ...]:
    """The headers of an answer that are written.

    Raises:
        SecretLeakError: an address holds a secret that can't be replaced.
    """
    out: list[tuple[str, str]] = []
    for name, value in headers:
        lower = name.lower()
        is_plain = lower in PLAIN_HEADERS or (lower == "content-length" and request.method == "HEAD")
        if lower in SECRET_HEADERS:
            out.append((name, _cookie(value, vault) if lower == "set-cookie" else vault.mark("private", value)))
        elif is_plain and (lower != "etag" or _PLAIN_ETAG.fullmatch(value)):
            out.append((name, _addressed(lower, value, request, vault, plain)))
    return tuple(out)


def _addressed(name: str, value: str, request: Request, vault: Vault, plain: Container[str]) -> str:
    """A plain header with the addresses in it redacted."""
    place = f"the header {name} from {request.host}"

    def target(address: str) -> str:
        check_address(address, place, plain)
        return redact_address(address, vault, plain)

    def part(found: re.Match[str]) -> str:
        key, quoted = found.groups()
        text = quoted[1:-1] if quoted.startswith('"') else quoted
        if key.lower() == "realm":
            return f'{key}="{target(text) if "/" in text else text}"'
        return found.group() if key.lower() in _PLAIN_CHALLENGE else f'{key}="{vault.mark("private", text)}"'

    def bare(found: re.Match[str]) -> str:
        return found[1] + vault.mark("credential", found[2]) if found[2] else found.group()

    if name == "location":
        return target(value)
    if name == "link":
        return _LINK_TARGET.sub(lambda found: f"<{target(found[1])}>", value)
    if name == "www-authenticate":
        return _CHALLENGE_PART.sub(part, _CHALLENGE_VALUE.sub(bare, value))
    return value


def _cookie(line: str, vault: Vault) -> str:
    name, equals, value = line.partition(";")[0].strip().partition("=")
    mark = vault.mark("cookie", value if equals else name, "header Set-Cookie")
    return f"{name}={mark}" if equals else mark
