"""A transport of httpx in the network's place: recorded registries, mocks, what an embedding program brings."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import httpx

from imagestore.pieces import PieceReader
from imagestore.registry.transport import faults
from imagestore.registry.transport.translation import translating

if TYPE_CHECKING:
    from imagestore.registry.transport.message import Fields, Outgoing
    from imagestore.registry.transport.network import Exchange

# The nearest class of an error decides.
_COUNTERPARTS: Final[dict[type[Exception], type[faults.TransportError]]] = {
    httpx.ConnectTimeout: faults.ConnectWaitError,
    httpx.TimeoutException: faults.WaitError,
    httpx.ConnectError: faults.ConnectError,
    httpx.ProxyError: faults.ProxyError,
    httpx.RemoteProtocolError: faults.InvalidAnswerError,
    httpx.LocalProtocolError: faults.UnsendableError,
    httpx.UnsupportedProtocol: faults.UnsendableError,
    httpx.InvalidURL: faults.UnsendableError,
    httpx.HTTPError: faults.TransportError,
    httpx.StreamError: faults.TransportError,
    OSError: faults.TransportError,
}


class Given:
    """See Exchanges.

    Args:
        transport: answers; closed by who gave it.
    """

    def __init__(self, transport: httpx.BaseTransport) -> None:
        self._transport = transport

    def handle(self, request: Outgoing, exchange: Exchange) -> _Answer:
        """See Exchanges."""
        request.head()
        with translating(_COUNTERPARTS):
            url = httpx.URL(scheme=request.scheme, host=request.host, port=request.given_port, raw_path=request.target)
            outgoing = httpx.Request(
                request.method,
                url,
                headers=list(request.fields),
                content=request.body,
                extensions={"timeout": request.limits},
            )
            return _Answer(self._transport.handle_request(outgoing))

    def close(self) -> None:
        """See Exchanges; whoever gave the transport closes it."""


class _Answer:
    """See Incoming."""

    def __init__(self, answer: httpx.Response) -> None:
        assert isinstance(answer.stream, httpx.SyncByteStream)
        self.status = answer.status_code
        self.fields: Fields = tuple(answer.headers.raw)
        self._answer = answer
        self._reader = PieceReader(iter(answer.stream))

    def readinto(self, buffer: memoryview) -> int:
        with translating(_COUNTERPARTS):
            return self._reader.readinto(buffer)

    def close(self) -> None:
        with contextlib.suppress(*_COUNTERPARTS):
            self._answer.close()
