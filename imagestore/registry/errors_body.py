"""A registry's messages: refusals as errors of this package, and ``Warning`` headers.

The distribution specification ("Error codes") has a JSON object with ``errors``, a list of code, message and detail.
Many answers are something else: a proxy's HTML page, plain text, nothing. The body is read within a limit and shown
shortened and escaped, always with the status.

Some servers and proxies quote the request in their texts, and messages end up in logs. So secrets that were sent are
hidden in what is shown.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from imagestore.errors import (
    AccessDeniedError,
    AuthenticationError,
    ProtocolError,
    RateLimitedError,
    ReferenceNotFoundError,
    RegistryError,
    RegistryUnavailableError,
)
from imagestore.registry.content_coding import decoded
from imagestore.registry.transport.proxy import PROXY_LOGIN
from imagestore.registry.transport.tls import CLIENT_HINT
from imagestore.registry.transport.urls import escape

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import httpx

    from imagestore.registry.transport.messages import Response


_MAX_READ_BYTES: Final = 64 * 1024
_MAX_COMPLAINTS: Final = 10
# The word of a sentence, and not of an address, which any page may have.
_WANTS_TLS: Final = re.compile(rb"(?i)\bhttps\b(?!:)|plain http request")
# nginx, in a page for browsers: without one, and with one that it doesn't accept.
_WANTS_CLIENT: Final = re.compile(rb"(?i)no required ssl certificate|the ssl certificate error")
# Private and missing repositories are alike on many services.
_REFUSALS: Final = {401: AuthenticationError, 403: AccessDeniedError, 404: ReferenceNotFoundError}
# What the specification asks servers to stay below, all warnings of an answer together.
_MAX_WARNING_BYTES: Final = 4096
# Only code 299 with the agent "-" is meant for people (OCI distribution specification 1.1, "Warnings").
_WARNING: Final = re.compile(r'(?:^|,)[ \t]*299 - "((?:[^"\\]|\\.)*)"')
# Shorter secrets occur in ordinary words, where hiding them would give them away.
_LEAST_SECRET_LENGTH: Final = 8
_HIDDEN: Final = "(hidden)"


def failure(response: Response, *, what: str, retry_after: float | None = None) -> RegistryError:
    """Turn a refusal into an error; reads and closes the response."""
    body = read_some(response)
    body = decoded(response, body, _MAX_READ_BYTES)
    said = escape(_complaints(body, response.headers.get("Content-Type", "")))
    error = _classified(response, what, said, body, retry_after)
    error.said = said
    if response.proxy and response.status != 407:
        through = f"it is asked through proxy {response.proxy}, which may have answered instead"
        error.hint = f"{through}; {error.hint}" if error.hint else through
    return error


def _classified(response: Response, what: str, said: str, body: bytes, retry_after: float | None) -> RegistryError:
    host, status = response.host, response.status
    message = f"{what}: {host} answered {status}" + (f": {said}" if said else "")
    if status in _REFUSALS:
        hint = f"it does not exist, or it needs a login at {host}"
        return _REFUSALS[status](message, host=host, status=status, hint=hint)
    if status in {408, 429} or status >= 500:
        hint = f"the registry asks to wait {retry_after:.0f} s" if retry_after is not None else ""
        kind = RateLimitedError if status == 429 else RegistryUnavailableError
        return kind(message, host=host, status=status, hint=hint, retry_after=retry_after)
    hint = tls_hint(response, body)
    if status == 407:
        message = f"{what}: the proxy on the way to {host} answered 407" + (f": {said}" if said else "")
        hint = PROXY_LOGIN
    return ProtocolError(message, host=host, status=status, hint=hint)


def tls_hint(response: Response, body: bytes) -> str:
    """What to do if plain HTTP reached a TLS server, or a server wants a client certificate; else empty."""
    if response.status == 400 and response.url.startswith("https:") and _WANTS_CLIENT.search(body):
        return CLIENT_HINT
    if response.status != 400 or not response.url.startswith("http:") or not _WANTS_TLS.search(body):
        return ""
    return f'if {response.host} speaks https, say so with server = "https://{response.host}" in its hosts.toml'


def read_some(response: Response) -> bytes:
    """The first bytes of a refusal's body, as far as they can be read; closes the response."""
    body = bytearray()
    with response:
        try:
            for piece in response.chunks():
                body += piece
                if len(body) >= _MAX_READ_BYTES:
                    break
        except RegistryError:
            # The bytes before the failure are shown.
            pass
    return bytes(body[:_MAX_READ_BYTES])


def _complaints(body: bytes, content_type: str) -> str:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    found = document.get("errors") if isinstance(document, dict) else None
    if isinstance(found, list):
        parts = [
            ": ".join(text for key in ("code", "message") if (text := _text(entry.get(key))))
            for entry in found[:_MAX_COMPLAINTS]
            if isinstance(entry, dict)
        ]
        return "; ".join(part for part in parts if part)
    if isinstance(document, dict):
        return next((text for key in ("message", "details", "error") if (text := _text(document.get(key)))), "")
    # A page made for a browser says nothing in one line.
    if "html" in content_type.lower() or b"\0" in body:
        return ""
    text = body.decode("utf-8", "replace").strip()
    return "" if text.count("\ufffd") > max(8, len(text) // 8) else text


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def warning_texts(headers: httpx.Headers) -> tuple[str, ...]:
    r"""The texts, escaped for display.

    >>> import httpx
    >>> warning_texts(httpx.Headers({"Warning": '299 - "moves to \\"b\\" soon", 110 - "stale"'}))
    ('moves to "b" soon',)
    """
    found: list[str] = []
    left = _MAX_WARNING_BYTES
    for value in headers.get_list("Warning"):
        found.extend(escape(re.sub(r"\\(.)", r"\1", match[1])) for match in _WARNING.finditer(value[:left]))
        left = max(0, left - len(value))
    return tuple(found)


def secrets_in(fields: Iterable[tuple[str, str]], *, signed: str = "") -> tuple[str, ...]:
    """Texts that must not be repeated, the longest first, since one may hold another.

    ``fields`` are header fields that may be secret: ``Authorization``, and those configured for a registry. ``signed``
    is an address that a redirect named; every value in its query may be a signature.
    """
    values = {pair.partition("=")[2] for pair in signed.partition("?")[2].split("&")}
    found = values | {unquote(value) for value in values}
    for name, value in fields:
        found.add(value)
        if name.lower() == "authorization":
            scheme, _, argument = value.partition(" ")
            found.add(argument)
            if scheme.lower() == "basic":
                pair = _decoded(argument)
                found |= {pair, pair.partition(":")[2]}
    found |= {escape(text) for text in found}
    return tuple(sorted((text for text in found if len(text) >= _LEAST_SECRET_LENGTH), key=len, reverse=True))


def redact(text: str, secrets: Collection[str]) -> str:
    """A text with every secret in it hidden.

    >>> redact("you sent Bearer abc.def", ["abc.def"])
    'you sent Bearer (hidden)'
    """
    folded = text.casefold()
    for secret in secrets:
        # A signed address may have a thousand values, and expressions are costly to make.
        if secret.casefold() in folded:
            text = re.sub(re.escape(secret), _HIDDEN, text, flags=re.IGNORECASE)
    return text


def hide_secrets(error: RegistryError, secrets: Collection[str]) -> None:
    """Hide secrets in the registry's text that an error repeats; our own text holds none."""
    if error.said:
        said = redact(error.said, secrets)
        error.args = (str(error).replace(error.said, said), *error.args[1:])
        error.said = said


def _decoded(argument: str) -> str:
    try:
        return base64.b64decode(argument).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""
