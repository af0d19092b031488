"""A transport of httpx in the network's place: recorded registries, mocks, what an embedding program brings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import httpcore
import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

# What has no counterpart is a broken connection. The nearest class of an error decides.
_COUNTERPARTS: Final[dict[type[Exception], type[Exception]]] = {
    httpx.ConnectTimeout: httpcore.ConnectTimeout,
    httpx.TimeoutException: httpcore.TimeoutException,
    httpx.ConnectError: httpcore.ConnectError,
    httpx.ProxyError: httpcore.ProxyError,
    httpx.RemoteProtocolError: httpcore.RemoteProtocolError,
    httpx.LocalProtocolError: httpcore.LocalProtocolError,
    httpx.UnsupportedProtocol: httpcore.UnsupportedProtocol,
    httpx.InvalidURL: httpcore.LocalProtocolError,
    httpx.HTTPError: httpcore.NetworkError,
    httpx.StreamError: httpcore.NetworkError,
}


class Given:
    """See Exchanges.

    Args:
        transport: answers; closed by who gave it.
    """

    #: There is no network below it, and nothing can be read past it.
    network = None
    is_direct = False

    def __init__(self, transport: httpx.BaseTransport) -> None:
        self._transport = transport

    def handle(self, request: httpcore.Request) -> httpcore.Response:
        """See Exchanges."""
        url, body = request.url, request.stream
        assert isinstance(body, Iterable)
        with _in_words_of_the_engine():
            answer = self._transport.handle_request(
                httpx.Request(
                    request.method.decode("ascii"),
                    httpx.URL(
                        scheme=url.scheme.decode("ascii"),
                        host=url.host.decode("ascii"),
                        port=url.port,
                        raw_path=url.target,
                    ),
                    headers=request.headers,
                    content=b"".join(body),
                    extensions=request.extensions,
                )
            )
        return httpcore.Response(
            answer.status_code, headers=answer.headers.raw, content=_Body(answer), extensions=answer.extensions
        )


class _Body:
    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        stream = self._answer.stream
        assert isinstance(stream, httpx.SyncByteStream)
        with _in_words_of_the_engine():
            yield from stream

    def close(self) -> None:
        with _in_words_of_the_engine():
            self._answer.close()


@contextlib.contextmanager
def _in_words_of_the_engine() -> Iterator[None]:
    """Errors as httpcore raises them."""
    try:
        yield
    except tuple(_COUNTERPARTS) as error:
        kind = next(_COUNTERPARTS[each] for each in type(error).__mro__ if each in _COUNTERPARTS)
        raise kind(*error.args) from error
