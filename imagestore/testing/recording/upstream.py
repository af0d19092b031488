"""Real registries while recording: where logical hosts are, requests to them, and the addresses that they name.

A request is sent as it came: no redirect is followed, nothing is decoded, no cookie is kept. An answer from outside
``/v2/`` is content only when a registry redirected a request for content there. An address that a challenge named stays
a token service, whatever its path is.
"""

from __future__ import annotations

import re
import threading
import urllib.parse
from typing import TYPE_CHECKING, Final

import httpx

from imagestore.errors import InvalidInputError
from imagestore.testing.engine.messages import Fields, Request
from imagestore.testing.engine.urls import parse_path
from imagestore.util.logins import without_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# Fields that belong to one connection (RFC 9110 section 7.6.1), those that the HTTP library writes itself, and the one
# that is written here.
_NOT_SENT: Final = frozenset(
    {
        *("connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade", "accept-encoding"),
    }
)
_TIMEOUT_SECONDS: Final = 60.0
_REALM: Final = re.compile(r'(?i)\brealm="?([^"\s,]+)')
_CONTENT: Final = frozenset({"manifest", "blob"})


class Upstream:
    """Sends requests for logical hosts to where they really are.

    Args:
        places: logical host to base address; a host that isn't listed is asked under its own name.
        transport: replaces the network (tests).
    """

    def __init__(self, places: Mapping[str, str], *, transport: httpx.BaseTransport | None = None) -> None:
        self._places = {ascii_host(host): address for host, address in places.items()}
        self._client = httpx.Client(transport=transport, follow_redirects=False, timeout=_TIMEOUT_SECONDS)
        self._back = {
            re.compile(re.escape(address) + r"(?=[/\"?;,>#:]|$)"): f"https://{host}"
            for host, address in self._places.items()
        }

    def close(self) -> None:
        """Drop all connections."""
        self._client.close()

    def send(self, request: Request) -> httpx.Response:
        """One exchange; the body is still to be read.

        Raises:
            httpx.HTTPError: no connection, or the answer is not HTTP.
        """
        base = self._places.get(request.host, f"{request.scheme}://{request.host}")
        address = base + request.path + (f"?{request.query}" if request.query else "")
        # Without a content coding, so that what is searched for secrets is what comes.
        headers = [(name, value) for name, value in request.fields.items if name.lower() not in _NOT_SENT]
        headers.append(("Accept-Encoding", "identity"))
        # Not client.request(): its defaults (Accept-Encoding and others) are not what this client asked for.
        outgoing = httpx.Request(request.method, address, headers=headers, content=request.body or None)
        self._client.cookies.clear()
        return self._client.send(outgoing, stream=True)

    def logical_headers(self, response: httpx.Response) -> Fields:
        """The answer's headers with real addresses turned back into logical ones."""

        def _logical(value: str) -> str:
            for form, logical in self._back.items():
                value = form.sub(logical, value)
            return value

        return Fields.decode(response.headers.raw).readdressed(_logical)


def ascii_host(host: str) -> str:
    """A logical host as it stands in requests: lower case, an international name in its ASCII form.

    Raises:
        InvalidInputError: no host name.
    """
    if host.isascii():
        return host.lower()
    try:
        return httpx.URL(f"https://{host}").netloc.decode("ascii")
    except httpx.InvalidURL as problem:
        raise InvalidInputError(f"host {host!r}: expected a host name: {problem}") from problem


def upstream_map(pairs: Iterable[str]) -> dict[str, str]:
    """Read ``host=address`` pairs.

    >>> upstream_map(["registry.example=http://127.0.0.1:5000/"])
    {'registry.example': 'http://127.0.0.1:5000'}

    Raises:
        InvalidInputError: not of this form.
    """
    out: dict[str, str] = {}
    for pair in pairs:
        host, _, address = pair.partition("=")
        if not host or not _is_base(address):
            raise InvalidInputError(f"upstream {without_login(pair)!r}: expected logical.host=http://address:port")
        out[host.lower()] = address.rstrip("/")
    return out


def _is_base(address: str) -> bool:
    """Whether requests can be sent there; the system would truncate a port that is too large."""
    try:
        parts = urllib.parse.urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def port_map(pairs: Iterable[str]) -> dict[str, int]:
    """Read ``host=port`` pairs.

    >>> port_map(["registry.example=5000"])
    {'registry.example': 5000}

    Raises:
        InvalidInputError: not of this form.
    """
    out: dict[str, int] = {}
    for pair in pairs:
        host, _, text = pair.rpartition("=")
        if not host or not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) or int(text) > 65535:
            raise InvalidInputError(f"port {pair!r}: expected logical.host=port")
        out[host.lower()] = int(text)
    return out


class UpstreamAddresses:
    """Collects addresses out of answers, before the client can ask there."""

    def __init__(self) -> None:
        self._realms: set[tuple[str, str]] = set()
        self._stores: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._realms) + len(self._stores)

    def note(self, request: Request, fields: Fields) -> None:
        """Take the addresses out of an answer's head."""
        with self._lock:
            for challenge in fields.get_all("WWW-Authenticate"):
                self._realms |= {_place(request, one) for one in _REALM.findall(challenge) if "/" in one}
            for location in fields.get_all("Location"):
                here = (request.host, request.path)
                if here in self._realms:
                    self._realms.add(_place(request, location))
                elif here in self._stores or parse_path(request.path).kind in _CONTENT:
                    self._stores.add(_place(request, location))

    def is_realm(self, request: Request) -> bool:
        """Whether a challenge named this address."""
        with self._lock:
            return (request.host, request.path) in self._realms

    def is_content(self, request: Request, status: int) -> bool:
        """Whether an answer is a manifest, a blob, or a storage host's copy of one: it may go to disk as it is."""
        if status not in (200, 206) or self.is_realm(request):
            return False
        if request.path.startswith("/v2/") and parse_path(request.path).kind in _CONTENT:
            return True
        with self._lock:
            return (request.host, request.path) in self._stores


def _place(request: Request, address: str) -> tuple[str, str]:
    base = f"{request.scheme}://{request.host}{request.path}"
    try:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(base, address))
    except ValueError:
        return ("", "")
    host = parts.netloc.rpartition("@")[2].lower()
    default = ":443" if parts.scheme == "https" else ":80"
    return host.removesuffix(default), parts.path or "/"
