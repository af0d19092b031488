"""Which values are secret, and what is written in their place: in queries and forms, addresses, credentials, headers.

Everything is decided by name: a header or query parameter is *plain* (kept), *secret* (replaced) or unknown. Unknown
ones are never written as they are, because guessing there is how tokens leak.
"""

from __future__ import annotations

import re
import threading
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.testing.engine.urls import PLAIN_PARAMETERS, is_empty_parameter, is_placeholder
from imagestore.testing.recording.secret_guard import parts_of_basic, shown_name
from imagestore.testing.recording.upstream import UpstreamAddresses

if TYPE_CHECKING:
    from imagestore.testing.engine.messages import Request

# Response headers that are written; all others are left out.
_PLAIN_HEADERS: Final = frozenset(
    {
        *("accept-ranges", "content-encoding", "content-range", "content-type", "docker-content-digest"),
        *("docker-distribution-api-version", "etag", "link", "location", "oci-chunk-min-length"),
        *("oci-filters-applied", "oci-namespace", "oci-subject", "oci-tag", "range", "ratelimit-limit"),
        *("ratelimit-remaining", "retry-after", "warning", "www-authenticate"),
    }
)
# The value of this one is replaced, as that of Set-Cookie is.
_RATE_LIMIT_SOURCE: Final = "docker-ratelimit-source"
# Request headers that are no credentials; the values of all others are remembered and searched for.
_PLAIN_REQUEST_HEADERS: Final = frozenset(
    {
        *("accept", "accept-encoding", "accept-language", "cache-control", "connection", "content-encoding"),
        *("content-length", "content-range", "content-type", "date", "docker-distribution-api-version", "expect"),
        *("forwarded", "host", "if-match", "if-modified-since", "if-none-match", "if-range", "keep-alive"),
        *("origin", "pragma", "proxy-connection", "range", "referer", "sec-fetch-mode", "service", "te"),
        *("traceparent", "tracestate", "trailer", "transfer-encoding", "upgrade", "user-agent", "via"),
        *("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-meta-source-client", "x-request-id"),
    }
)
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
# The kind of a parameter that no table names: it may be a signature.
_UNKNOWN: Final = "signed"
# Values shorter than this are too common to look for in other places. A user's name or an unknown parameter may well be
# an ordinary word that occurs elsewhere for other reasons.
_LEAST: Final = 6
_LEAST_SEARCHED: Final = {"user": 1 << 30, "client": 1 << 30, "private": 1 << 30, "signed": 16, "password": 4}
_AUTHORIZATION: Final = "request header Authorization"
_AUTH_NAMES: Final = {"basic": "basic", "bearer": "token"}


@dataclass(slots=True)
class SeenSecrets:
    """Every secret value that was seen, and its placeholder: one for each kind and value, wherever the value occurs.

    So a token in an answer and in the next request's header stay the same word, and the tape replays.

    Attributes:
        known: values given beforehand (passwords of the user, for example); they are searched for however short.
        keeps_placeholders: a value that is a placeholder already stays as it is, and is no secret.
    """

    known: tuple[str, ...] = ()
    keeps_placeholders: bool = False
    _placeholders: dict[tuple[str, str], str] = field(default_factory=dict)
    _sources: dict[str, str] = field(default_factory=dict)
    _learned: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def placeholder(self, kind: str, value: str, source: str = "") -> str:
        """The placeholder for a value, still without a number; ``source`` says in messages where it was seen."""
        if not value or (self.keeps_placeholders and is_placeholder(value)):
            return value
        with self._lock:
            self._sources.setdefault(value, source)
            return self._placeholders.setdefault((kind, value), f"tape-{kind}-@{len(self._placeholders)}@")

    def learn(self, value: str, source: str = "") -> None:
        """Remember a secret that has no place in a tape, so that it is found if it comes back in an answer."""
        if len(value) >= _LEAST:
            with self._lock:
                self._sources.setdefault(value, source)
                self._learned.add(value)

    def kinds(self) -> list[str]:
        """The kinds of the values that have a placeholder, in the order in which they came."""
        with self._lock:
            return [kind for kind, _ in self._placeholders]

    def values(self) -> dict[str, str]:
        """Every secret to search for, as it is (the search knows the spellings), and where it was seen."""
        with self._lock:
            seen = {value for kind, value in self._placeholders if len(value) >= _LEAST_SEARCHED.get(kind, _LEAST)}
            found = {value: self._sources[value] for value in seen | self._learned}
            basics = {value: self._sources[value] for kind, value in self._placeholders if kind == "basic"}
        parts = {part: source for value, source in basics.items() for part in parts_of_basic(value)}
        found |= {part: source for part, source in parts.items() if len(part) >= _LEAST_SEARCHED["password"]}
        found |= {value: "named beforehand" for value in self.known if value}
        # A tape recorded from a replay holds placeholders from the start.
        return {value: source for value, source in found.items() if not is_placeholder(value)}


@dataclass(frozen=True, slots=True)
class Redactor:
    """Redacts what stands around a body.

    Attributes:
        plain_names: harmless names of request headers and parameters.
        addresses: what upstream named so far.
    """

    secrets: SeenSecrets
    plain_names: frozenset[str] = frozenset()
    addresses: UpstreamAddresses = field(default_factory=UpstreamAddresses)

    def query(self, query: str) -> str:
        """A query or form with the values of every parameter that isn't known to be plain replaced."""
        return "&".join(self._parameter(pair) for pair in query.split("&"))

    def _parameter(self, pair: str) -> str:
        name, equals, value = pair.partition("=")
        plain_name = urllib.parse.unquote_plus(name).lower()
        if plain_name in PLAIN_PARAMETERS or plain_name in self.plain_names or not pair:
            return pair
        if not value.strip("="):
            # No value at all: the name itself may be the secret, unless it is a word with an empty value.
            return pair if is_empty_parameter(pair) else self.secrets.placeholder(_UNKNOWN, urllib.parse.unquote(pair))
        value = urllib.parse.unquote_plus(value)
        source = f"parameter {shown_name(plain_name)}"
        return f"{name}{equals}{self.secrets.placeholder(_SPECIFIC.get(plain_name, _UNKNOWN), value, source)}"

    def address(self, address: str) -> str:
        """An address (absolute or relative) without user info, its query redacted, its fragment dropped."""
        try:
            parts = urllib.parse.urlsplit(address)
            user, password = parts.username, parts.password
        except ValueError:
            return self.secrets.placeholder("address", address)
        self.secrets.placeholder("user", user or "")
        self.secrets.placeholder("password", urllib.parse.unquote(password or ""), "password of an address")
        # Not written, and too ordinary a word to be looked for elsewhere.
        self.secrets.placeholder("private", parts.fragment)
        place = parts.netloc.rpartition("@")[2]
        return urllib.parse.urlunsplit((parts.scheme, place, parts.path, self.query(parts.query), ""))

    def authorization(self, value: str) -> str:
        """A credential as its scheme and a placeholder."""
        scheme, blank, secret = value.partition(" ")
        if not blank:
            return self.secrets.placeholder("credential", value, _AUTHORIZATION)
        kind = _AUTH_NAMES.get(scheme.lower(), "credential")
        return f"{scheme} {self.secrets.placeholder(kind, secret.strip(), _AUTHORIZATION)}"

    def learn(self, request: Request) -> None:
        """Remember every value in a request's headers that may be a credential, but for Authorization."""
        for name, value in request.fields.items:
            lower = name.lower()
            source = f"request header {shown_name(name)}"
            if lower == "cookie":
                for cookie in value.split(";"):
                    key, equals, text = cookie.strip().partition("=")
                    self.secrets.learn((text if equals else key).strip('"'), source)
            elif lower == "proxy-authorization":
                scheme, _, secret = value.partition(" ")
                self.secrets.placeholder(_AUTH_NAMES.get(scheme.lower(), "credential"), secret.strip(), source)
            elif lower != "authorization" and lower not in _PLAIN_REQUEST_HEADERS and lower not in self.plain_names:
                self.secrets.learn(value.strip(), source)

    def headers(self, request: Request, headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """The headers of an answer that are written."""
        out: list[tuple[str, str]] = []
        for name, value in headers:
            lower = name.lower()
            is_plain = lower in _PLAIN_HEADERS or (lower == "content-length" and request.method == "HEAD")
            if lower == "set-cookie":
                out.append((name, self._cookie(value)))
            elif lower == _RATE_LIMIT_SOURCE:
                out.append((name, self.secrets.placeholder("private", value)))
            elif is_plain and (lower != "etag" or _PLAIN_ETAG.fullmatch(value)):
                out.append((name, self._plain_header(lower, value)))
        return tuple(out)

    def _plain_header(self, name: str, value: str) -> str:
        """A plain header with the addresses in it redacted."""

        def _part(found: re.Match[str]) -> str:
            key, quoted = found.groups()
            text = quoted[1:-1] if quoted.startswith('"') else quoted
            if key.lower() == "realm":
                return f'{key}="{self.address(text) if "/" in text else text}"'
            return (
                found.group()
                if key.lower() in _PLAIN_CHALLENGE
                else f'{key}="{self.secrets.placeholder("private", text)}"'
            )

        def _bare(found: re.Match[str]) -> str:
            return found[1] + self.secrets.placeholder("credential", found[2]) if found[2] else found.group()

        if name == "location":
            return self.address(value)
        if name == "link":
            return _LINK_TARGET.sub(lambda found: f"<{self.address(found[1])}>", value)
        if name == "www-authenticate":
            return _CHALLENGE_PART.sub(_part, _CHALLENGE_VALUE.sub(_bare, value))
        return value

    def _cookie(self, line: str) -> str:
        name, equals, value = line.partition(";")[0].strip().partition("=")
        mark = self.secrets.placeholder("cookie", value if equals else name, "header Set-Cookie")
        return f"{name}={mark}" if equals else mark
