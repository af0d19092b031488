"""Requests (httpx's own), redirects, and responses: httpx's, with bodies that are read within limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

import httpx

from imagestore._version import __version__
from imagestore.errors import ProtocolError
from imagestore.registry.transport import urls
from imagestore.registry.transport.connection import BODY, SizedBody
from imagestore.util.files import StreamReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Self

    from imagestore.registry.transport.addresses import Origin
    from imagestore.util.cancel import CancelToken

#: Whether a request's extensions ask to wait long for the answer: in a push the other end often has work to do first.
PATIENT: Final = "imagestore.patient"
_MAX_HEADER_COUNT: Final = 256
_MAX_HEADER_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 64 * 1024
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
#: Statuses of redirects that are followed.
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
# Those that keep the method; the others turn a write into a GET (RFC 9110, section 15.4).
_SAME_METHOD: Final = frozenset({307, 308})
# The header fields that another host gets: what is wanted, and what the body is.
_KEPT_ELSEWHERE: Final = frozenset({"accept", "range", "content-type", "content-range"})
# What httpx makes for each request.
_MADE: Final = frozenset({"host", "content-length"})
# Digests are over bytes as stored; a transfer coding would only allow decompression bombs.
_ALWAYS: Final = (("Accept-Encoding", "identity"), ("User-Agent", f"imagestore/{__version__}"))


def make_request(
    method: str, url: str, headers: Iterable[tuple[str, str]] = (), body: bytes | Iterable[bytes] | None = None
) -> httpx.Request:
    """A request with the header fields of all our requests, unless ``headers`` has them.

    A body in pieces is sent as they come; ``headers`` then has its Content-Length.

    Raises:
        ProtocolError: the URL can't be used, or a header has characters that would change its meaning.
    """
    urls.split(url)
    fields = list(headers)
    are_plain = all(
        _TOKEN.fullmatch(name) and _FIELD_VALUE.fullmatch(value) and value.strip(" \t") == value
        for name, value in fields
    )
    try:
        if not are_plain or not _TOKEN.fullmatch(method):
            raise ValueError
        request = httpx.Request(method, url, headers=fields, content=body)
    except httpx.InvalidURL as error:
        raise ProtocolError(f"URL {urls.shown(url)}: can't be read: {error}") from error
    except ValueError:
        # The error's own text may quote a header, and with it a token.
        host = urls.host_port(urls.origin_of(url))
        raise ProtocolError(f"{host}: the request can't be sent as it is", host=host) from None
    for name, value in _ALWAYS:
        request.headers.setdefault(name, value)
    return request


def redirected(
    request: httpx.Request,
    url: str,
    *,
    only: Collection[str] | None = None,
    body: Callable[[], Iterable[bytes]] | None = None,
) -> httpx.Request:
    """The same request to another address; with ``only``, with these header fields (in lower case) and no others.

    A body that was sent in pieces comes from ``body`` again.
    """
    fields = request.headers.multi_items()
    kept = [(name, value) for name, value in fields if name not in _MADE and (only is None or name in only)]
    if body is None:
        return make_request(request.method, url, kept, request.content or None)
    return make_request(request.method, url, [*kept, ("Content-Length", request.headers["Content-Length"])], body())


def parse_length(text: str) -> int | None:
    """A Content-Length in bytes; None when missing or unreadable."""
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) else None


def check_head(answer: httpx.Response, host: str) -> None:
    """Bound the head of a response."""
    fields = answer.headers.raw
    size = sum(len(name) + len(value) for name, value in fields)
    if len(fields) > _MAX_HEADER_COUNT or size > _MAX_HEADER_BYTES:
        raise ProtocolError(
            f"{host}: expected at most {_MAX_HEADER_COUNT} header fields and {_MAX_HEADER_BYTES} bytes of them, "
            f"found {len(fields)} with {size} bytes",
            host=host,
            status=answer.status_code,
        )


def body_reader(answer: httpx.Response) -> Callable[[memoryview], int]:
    """A function that reads a response body into buffers: the transport's own, or one over the stream's pieces."""
    body = answer.extensions.get(BODY)
    if isinstance(body, SizedBody):
        return body.readinto
    assert isinstance(answer.stream, httpx.SyncByteStream)
    return StreamReader(answer.stream).readinto


class Response:
    """An answer whose body has not been read. Close it, or use it as a context manager.

    Args:
        answer: httpx's; its request has the URL that answered.
        readinto: reads the body; by default body_reader().
        on_close: called by close(), instead of the answer's own.
        proxy: address, without its login, of the proxy that may have answered instead; or empty.
    """

    def __init__(
        self,
        answer: httpx.Response,
        *,
        readinto: Callable[[memoryview], int] | None = None,
        on_close: Callable[[], None] | None = None,
        proxy: str = "",
    ) -> None:
        self.status = answer.status_code
        # A header's characters are its bytes.
        self.headers = httpx.Headers(answer.headers.raw, encoding="latin-1")
        self.url = str(answer.url)
        self.proxy = proxy
        self._on_close = on_close or answer.close
        #: Puts the next bytes of the body into a buffer; 0 only at its end. Not to be mixed with chunks().
        self.readinto = readinto or body_reader(answer)

    @property
    def length(self) -> int | None:
        """Content-Length in bytes; None when missing or unreadable."""
        return parse_length(self.headers.get("Content-Length", ""))

    @property
    def is_success(self) -> bool:
        """Whether the status is any of those that mean success."""
        return 200 <= self.status < 300

    @property
    def host(self) -> str:
        """Who answered, for messages."""
        return urls.host_port(urls.origin_of(self.url))

    def chunks(self) -> Iterator[bytes]:
        """The body in pieces of at most 64 KiB."""
        buffer = memoryview(bytearray(_PIECE_BYTES))
        while count := self.readinto(buffer):
            yield bytes(buffer[:count])

    def read(self, limit_bytes: int) -> bytes:
        """The whole body.

        Raises:
            ProtocolError: the body is longer than the limit.
        """
        if self.length is not None and self.length > limit_bytes:
            raise self._too_long(f"announces {self.length} bytes", limit_bytes)
        whole = bytearray()
        for piece in self.chunks():
            whole += piece
            if len(whole) > limit_bytes:
                raise self._too_long("goes on", limit_bytes)
        return bytes(whole)

    def close(self) -> None:
        """Give the connection back, or close it if the body wasn't read to its end; may be called again."""
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _too_long(self, found: str, limit_bytes: int) -> ProtocolError:
        return ProtocolError(
            f"{self.host}: expected a response body of at most {limit_bytes} bytes, this one {found}",
            host=self.host,
            status=self.status,
        )


class Sender(Protocol):
    """Sends one request, follows nothing, retries nothing."""

    def send(self, request: httpx.Request, *, cancel: CancelToken) -> Response:
        """Exchange one request for a response.

        Raises:
            RegistryUnavailableError: no connection, TLS failure, timeout, or the peer hung up.
            ProtocolError: the answer is no HTTP, or the request can't be sent as it is.
        """


def next_request(
    request: httpx.Request,
    response: Response,
    home: Origin,
    seen: set[str],
    most: int,
    body: Callable[[], Iterable[bytes]] | None = None,
) -> httpx.Request:
    """The request that a redirect asks for; ``home`` is the origin whose secrets it may carry.

    ``seen`` has the addresses that were asked, and gets the new one; at most so many redirects are followed.

    Blobs are usually served by a storage host under a signed URL. ``Authorization`` and every configured header are
    dropped as soon as scheme, host or port differ from the registry's, and are not restored when a later hop returns
    (CVE-2026-50151, GHSA-vh4v-2xq2-g5cg; storage services also refuse a signed request with a second authorization).

    A write is repeated where a 307 or 308 sends it, with the pieces of its ``body`` from the beginning.

    Raises:
        ProtocolError: the redirect can't be followed, or there were too many.
    """
    here = urls.origin_of(str(request.url))
    host, status = urls.host_port(here), response.status
    location = response.headers.get("Location", "").strip()
    if request.method not in {"GET", "HEAD"} and status not in _SAME_METHOD:
        raise ProtocolError(f"{host}: a {request.method} is not redirected", host=host, status=status)
    if not location:
        raise ProtocolError(f"{host}: answered {status} without a Location to go to", host=host, status=status)
    try:
        target = urls.join(str(request.url), location)
        there = urls.origin_of(target)
    except ProtocolError as error:
        raise ProtocolError(f"{host}: redirects to an unusable address: {error}", host=host, status=status) from error
    if here.scheme == "https" and there.scheme != "https":
        message = f"{host}: redirects from https to {urls.shown(target)}, which is not encrypted"
        raise ProtocolError(message, host=host, status=status)
    following = redirected(request, target, only=None if there == home == here else _KEPT_ELSEWHERE, body=body)
    if str(following.url) in seen or len(seen) > most:
        host = urls.host_port(home)
        message = f"{host}: redirects in a circle or more than {most} times"
        raise ProtocolError(message, host=host, status=status)
    seen.add(str(following.url))
    return following
