"""An engine as an httpx transport, sync and async, with logical host names and no socket.

Broken deliveries appear as what httpx raises for them on a real connection: a body shorter than its Content-Length
and a bad header are RemoteProtocolError, a reset is ReadError, a stall or a pause longer than the client's read
timeout is ReadTimeout. Pauses use the given ``sleep``, so a test may pass a fake one.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import anyio
import httpx

from imagestore.errors import ConfigError
from imagestore.testing.engine.messages import Ending, Fields, Pause, Request, body_steps, has_body
from imagestore.util.distribution import install_hint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    import respx

    from imagestore.testing.engine.engine import PendingAnswer, RequestHandler

    AsyncSleep = Callable[[float], Awaitable[None]]

# What h11 refuses in a field value; other control characters reach the client.
_BAD_VALUE: Final = re.compile(r"[\x00\n\x0b\x0c\r]")
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}


class _ReplayStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A response body for both kinds of client; ``request`` is named by the exceptions."""

    def __init__(
        self,
        answered: PendingAnswer,
        request: httpx.Request,
        *,
        sleep: Callable[[float], None] = time.sleep,
        async_sleep: AsyncSleep = anyio.sleep,
    ) -> None:
        self._answered = answered
        self._request = request
        self._sleep = sleep
        self._async_sleep = async_sleep
        self._sent = 0
        self._is_finished = False

    def __iter__(self) -> Iterator[bytes]:
        for step in self._steps():
            if isinstance(step, bytes):
                yield step
            else:
                self._sleep(step)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self._steps():
            if isinstance(step, bytes):
                yield step
            else:
                await self._async_sleep(step)

    def close(self) -> None:
        """The client is done, at the end or before."""
        self._finish(Ending.CLOSED)

    async def aclose(self) -> None:
        """The client is done, at the end or before."""
        self._finish(Ending.CLOSED)

    def head_pause(self) -> float:
        """Seconds until the head comes; raises when the client would not wait so long."""
        return self._pause(self._answered.reply.delivery.head_delay_seconds)

    def response(self) -> httpx.Response:
        """The head around this stream; raises what httpx raises when no good head comes."""
        reply, request = self._answered.reply, self._request
        if reply.delivery.stop_at == -1:
            self._end(reply.delivery.ending)
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.", request=request)
        if any(_BAD_VALUE.search(value) for _, value in reply.fields.items):
            self._finish(Ending.CLOSED)
            raise httpx.RemoteProtocolError("illegal header value", request=request)
        fields = reply.framed_fields(request.method)
        headers = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in fields.items]
        if has_body(request.method, reply.status):
            return httpx.Response(reply.status, headers=headers, stream=self, request=request)
        self._finish(Ending.COMPLETE)
        return httpx.Response(reply.status, headers=headers, stream=httpx.ByteStream(b""), request=request)

    def _steps(self) -> Iterator[bytes | float]:
        """Pieces, and pauses in seconds; at the end raises what httpx raises for a delivery that broke off."""
        reply = self._answered.reply
        try:
            for step in body_steps(reply):
                if isinstance(step, Pause):
                    yield self._pause(step.seconds)
                elif isinstance(step, Ending):
                    if step is Ending.STALLED:
                        yield self._pause(reply.delivery.stall_seconds)
                    self._end(step)
                elif piece := self._cut(step):
                    yield piece
        except OSError as problem:  # a body that can't be read on: upstream broke off while recording
            self._finish(Ending.CLOSED)
            raise httpx.ReadError(str(problem), request=self._request) from problem

    def _announced(self) -> int | None:
        """The Content-Length that the client sees, or None."""
        reply = self._answered.reply
        if reply.fields.has("Content-Length"):
            text = reply.fields.get("Content-Length")
            return int(text) if text.isascii() and text.isdigit() else None
        return reply.length if reply.delivery.framing == "length" else None

    def _pause(self, seconds: float) -> float:
        timeouts = self._request.extensions.get("timeout")
        limit = timeouts.get("read") if isinstance(timeouts, dict) else None
        if isinstance(limit, (int, float)) and seconds > limit:
            self._finish(Ending.STALLED)
            raise httpx.ReadTimeout("The read operation timed out", request=self._request)
        return seconds

    def _cut(self, piece: bytes) -> bytes:
        """Count a piece; cuts what a client would not read past the announced length."""
        limit = self._announced()
        if limit is not None:
            piece = piece[: max(0, limit - self._sent)]
        self._sent += len(piece)
        return piece

    def _end(self, ending: Ending) -> None:
        """Close the ledger's entry and raise what this ending means."""
        self._finish(ending)
        limit = self._announced()
        if ending is Ending.RESET:
            raise httpx.ReadError("[Errno 104] Connection reset by peer", request=self._request)
        # A client that outwaited a stall sees the connection close.
        is_unfinished = ending in (Ending.CLOSED, Ending.STALLED)
        is_chunked = self._answered.reply.delivery.framing == "chunked"
        if (limit is not None and self._sent < limit) or (is_unfinished and is_chunked):
            raise httpx.RemoteProtocolError(
                "peer closed connection without sending complete message body", request=self._request
            )

    def _finish(self, ending: Ending) -> None:
        """Note the end once."""
        if not self._is_finished:
            self._is_finished = True
            self._answered.end(sent_bytes=self._sent, ending=ending)


class ReplayTransport(httpx.BaseTransport):
    """Answers an httpx.Client from an engine; ``sleep`` makes the pauses of faults."""

    def __init__(self, engine: RequestHandler, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.engine = engine
        self._sleep = sleep

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One exchange; raises as httpx would on a real connection."""
        stream = _ReplayStream(self.engine.answer(to_request(request, request.read())), request, sleep=self._sleep)
        self._sleep(stream.head_pause())
        return stream.response()


class AsyncReplayTransport(httpx.AsyncBaseTransport):
    """Answers an httpx.AsyncClient from an engine.

    While recording, an exchange with a real registry blocks the event loop; recordings are made once. anyio's ``sleep``
    works under asyncio and trio.
    """

    def __init__(self, engine: RequestHandler, *, sleep: AsyncSleep = anyio.sleep) -> None:
        self.engine = engine
        self._sleep = sleep

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One exchange; raises as httpx would on a real connection."""
        answered = self.engine.answer(to_request(request, await request.aread()))
        stream = _ReplayStream(answered, request, async_sleep=self._sleep)
        await self._sleep(stream.head_pause())
        return stream.response()


def to_request(request: httpx.Request, body: bytes) -> Request:
    """The engine's view of an httpx request; the host comes from the address, as on a proxy."""
    path, _, query = request.url.raw_path.decode("ascii").partition("?")
    port = request.url.port
    host = request.url.raw_host.decode("ascii").lower()
    if port is not None and port != _DEFAULT_PORTS.get(request.url.scheme):
        host = f"{host}:{port}"
    return Request(request.method, request.url.scheme, host, path, query, Fields.decode(request.headers.raw), body)


def mount(router: respx.Router, engine: RequestHandler, *, hosts: Iterable[str] = ()) -> list[respx.Route]:
    """Add routes to a respx router (``respx.mock``, say) that answer from an engine; for every host when none is named.

    Raises:
        ConfigError: respx is missing.
    """
    try:
        from respx.patterns import M
    except ImportError as problem:
        raise ConfigError("respx is not installed", hint=install_hint("testing")) from problem
    names = list(hosts)
    routes = [router.route(M(host=host)) for host in names] if names else [router.route()]
    # Its streams serve both kinds of client, so one function does for both.
    answer = ReplayTransport(engine).handle_request
    for route in routes:
        route.side_effect = answer
    return routes
