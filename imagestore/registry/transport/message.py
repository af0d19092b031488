"""A request as the HTTP library takes it (RFC 9112 section 3): host, length and what every request of ours says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpcore

from imagestore.errors import ProtocolError
from imagestore.registry.transport import urls

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.registry.exchange import Request

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def library_request(request: Request, *, user_agent: str, timeouts: Mapping[str, float]) -> httpcore.Request:
    """Put a request in the library's words.

    Args:
        request: what to send.
        user_agent: unless the request says its own.
        timeouts: in seconds, by the library's names: connect, read, write, pool.

    Raises:
        ProtocolError: its address or a field can't be sent.
    """
    parts = urls.split(request.url)
    name = parts.hostname or ""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    shown = f"[{name}]" if ":" in name else name
    port = None if parts.port == _DEFAULT_PORTS[parts.scheme] else parts.port
    try:
        return httpcore.Request(
            request.method,
            httpcore.URL(scheme=parts.scheme, host=name, port=port, target=target),
            headers=list(_fields(request, shown if port is None else f"{shown}:{port}", user_agent)),
            content=request.body or b"",
            extensions={"timeout": timeouts},
        )
    except (TypeError, ValueError) as error:  # UnicodeEncodeError: a field that isn't ASCII, for example
        host = urls.host_port(urls.origin_of(request.url))
        raise ProtocolError(f"{host}: the request can't be sent: {type(error).__name__}", host=host) from error


def _fields(request: Request, host: str, user_agent: str) -> Iterator[tuple[bytes, bytes]]:
    # Digests are over bytes as stored; a transport coding would only add a decompression bomb.
    always = [("Host", host), ("Accept-Encoding", "identity"), ("User-Agent", user_agent)]
    if request.body is not None or request.method == "POST":
        always.append(("Content-Length", str(len(request.body or b""))))
    given = {name.lower() for name, _ in request.headers}
    for name, value in (*(each for each in always if each[0].lower() not in given), *request.headers):
        yield name.encode("ascii"), value.encode("ascii")
