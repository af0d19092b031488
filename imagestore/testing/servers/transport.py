"""The httpx front end: an engine as a transport, sync and async, with logical host names and no socket.

Broken deliveries appear as what httpx raises for them on a real connection: a body shorter than its Content-Length
and a bad header are RemoteProtocolError, a reset is ReadError, a stall or a pause longer than the client's read
timeout is ReadTimeout. Pauses use the given ``sleep``, so a test may pass a fake one.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import httpx

from imagestore.errors import ConfigError
from imagestore.testing.engine.messages import Ending, Fields, Pause, Reply, Request, body_steps, has_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    import respx

    from imagestore.testing.engine.engine import Answered, RequestHandler

    AsyncSleep = Callable[[float], Awaitable[None]]

# What h11 refuses in a field value; other control characters reach the client.
_BAD_VALUE: Final = re.compile(r"[\x00\n\x0b\x0c\r]")
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}


class _Stream:
    """Plays one body; knows the request for the exceptions."""

    def __init__(self, answered: Answered, request: httpx.Request) -> None:
        self.answered = answered
        self.request = request
        self.sent = 0
        self.ending: Ending | None = None

    def announced(self) -> int | None:
        """The Content-Length that the client sees, or None."""
        reply = self.answered.reply
        if reply.fields.has("Content-Length"):
            text = reply.fields.get("Content-Length")
            return int(text) if text.isascii() and text.isdigit() else None
        return reply.length if reply.delivery.framing == "length" else None

    def steps(self) -> Iterator[bytes | Pause | Ending]:
        """What the body does; one that can't be read on (upstream broke off while recording) ends the connection."""
        try:
            yield from body_steps(self.answered.reply)
        except OSError as problem:
            self.finish(Ending.CLOSED)
            raise httpx.ReadError(str(problem), request=self.request) from problem

    def pause(self, seconds: float) -> float:
        """The pause to make; raises when the client would not wait so long."""
        limit = read_timeout(self.request)
        if limit is not None and seconds > limit:
            self.finish(Ending.STALLED)
            raise httpx.ReadTimeout("The read operation timed out", request=self.request)
        return seconds

    def take(self, piece: bytes) -> bytes:
        """Count a piece; cuts what a client would not read past the announced length."""
        limit = self.announced()
        if limit is not None:
            piece = piece[: max(0, limit - self.sent)]
        self.sent += len(piece)
        return piece

    def end(self, ending: Ending) -> None:
        """Close the ledger's entry and raise what this ending means."""
        self.finish(ending)
        limit = self.announced()
        if ending is Ending.RESET:
            raise httpx.ReadError("[Errno 104] Connection reset by peer", request=self.request)
        # A client that outwaited a stall sees the connection close.
        is_short = limit is not None and self.sent < limit
        if is_short or (
            ending in (Ending.CLOSED, Ending.STALLED) and self.answered.reply.delivery.framing == "chunked"
        ):
            raise httpx.RemoteProtocolError(
                "peer closed connection without sending complete message body", request=self.request
            )

    def finish(self, ending: Ending) -> None:
        """Note the end once."""
        if self.ending is None:
            self.ending = ending
            self.answered.end(sent_bytes=self.sent, ending=ending)


class ReplayStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A response body for both kinds of client."""

    def __init__(self, play: _Stream, *, sleep: Callable[[float], None], async_sleep: AsyncSleep | None = None) -> None:
        self._play = play
        self._sleep = sleep
        self._async_sleep = async_sleep

    def __iter__(self) -> Iterator[bytes]:
        for step in self._play.steps():
            if isinstance(step, Pause):
                self._sleep(self._play.pause(step.seconds))
            elif isinstance(step, Ending):
                if step is Ending.STALLED:
                    self._sleep(self._play.pause(self._play.answered.reply.delivery.stall_seconds))
                self._play.end(step)
            elif piece := self._play.take(step):
                yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self._play.steps():
            if isinstance(step, Pause):
                await (self._async_sleep or default_async_sleep())(self._play.pause(step.seconds))
            elif isinstance(step, Ending):
                if step is Ending.STALLED:
                    seconds = self._play.pause(self._play.answered.reply.delivery.stall_seconds)
                    await (self._async_sleep or default_async_sleep())(seconds)
                self._play.end(step)
            elif piece := self._play.take(step):
                yield piece

    def close(self) -> None:
        """The client is done, at the end or before."""
        self._play.finish(Ending.CLOSED)

    async def aclose(self) -> None:
        """The client is done, at the end or before."""
        self._play.finish(Ending.CLOSED)


def default_async_sleep() -> AsyncSleep:
    """anyio's sleep, which works under asyncio and trio; httpx brings anyio."""
    import anyio

    return anyio.sleep


class ReplayTransport(httpx.BaseTransport):
    """Answers an httpx.Client from an engine.

    Args:
        engine: decides the answers.
        sleep: makes the pauses of faults.
    """

    def __init__(self, engine: RequestHandler, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.engine = engine
        self._sleep = sleep

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One exchange; raises as httpx would on a real connection."""
        play = _Stream(self.engine.answer(to_request(request, request.read())), request)
        self._sleep(play.pause(play.answered.reply.delivery.head_delay_seconds))
        return _respond(play, ReplayStream(play, sleep=self._sleep))


class AsyncReplayTransport(httpx.AsyncBaseTransport):
    """Answers an httpx.AsyncClient from an engine.

    While recording, an exchange with a real registry blocks the event loop; recordings are made once.

    Args:
        engine: decides the answers.
        sleep: makes the pauses of faults; anyio.sleep by default, which works under asyncio and trio.
    """

    def __init__(self, engine: RequestHandler, *, sleep: AsyncSleep | None = None) -> None:
        self.engine = engine
        self._sleep = sleep

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One exchange; raises as httpx would on a real connection."""
        play = _Stream(self.engine.answer(to_request(request, await request.aread())), request)
        await (self._sleep or default_async_sleep())(play.pause(play.answered.reply.delivery.head_delay_seconds))
        return _respond(play, ReplayStream(play, sleep=time.sleep, async_sleep=self._sleep))


def _respond(play: _Stream, stream: ReplayStream) -> httpx.Response:
    _check_head(play)
    if not has_body(play.request.method, play.answered.reply.status):
        play.finish(Ending.COMPLETE)
        return to_response(play.answered.reply, play.request, httpx.ByteStream(b""))
    return to_response(play.answered.reply, play.request, stream)


def to_request(request: httpx.Request, body: bytes) -> Request:
    """The engine's view of an httpx request; the host comes from the address, as on a proxy."""
    path, _, query = request.url.raw_path.decode("ascii").partition("?")
    fields = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw)
    port = request.url.port
    host = request.url.raw_host.decode("ascii").lower()
    if port is not None and port != _DEFAULT_PORTS.get(request.url.scheme):
        host = f"{host}:{port}"
    return Request(request.method, request.url.scheme, host, path, query, Fields(fields), body)


def to_response(
    reply: Reply, request: httpx.Request, stream: httpx.SyncByteStream | httpx.AsyncByteStream
) -> httpx.Response:
    """The head of a reply as an httpx response around a stream."""
    fields = list(reply.fields.items)
    framing = reply.delivery.framing
    if framing == "chunked":
        fields.append(("Transfer-Encoding", "chunked"))
    elif framing == "length" and reply.status not in (204, 304) and not reply.fields.has("Content-Length"):
        fields.append(("Content-Length", str(reply.length)))
    headers = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in fields]
    return httpx.Response(reply.status, headers=headers, stream=stream, request=request)


def read_timeout(request: httpx.Request) -> float | None:
    """The client's read timeout in seconds, or None."""
    timeouts = request.extensions.get("timeout")
    value = timeouts.get("read") if isinstance(timeouts, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def _check_head(play: _Stream) -> None:
    reply = play.answered.reply
    if reply.delivery.stop_at == -1:
        play.end(reply.delivery.ending)
        raise httpx.RemoteProtocolError("Server disconnected without sending a response.", request=play.request)
    if any(_BAD_VALUE.search(value) for _, value in reply.fields.items):
        play.finish(Ending.CLOSED)
        raise httpx.RemoteProtocolError("illegal header value", request=play.request)


def mount(router: respx.Router, engine: RequestHandler, *, hosts: Iterable[str] = ()) -> list[respx.Route]:
    """Add routes to a respx router that answer from an engine.

    Args:
        router: ``respx.mock`` or a router of your own.
        engine: of a Registry, a Replay or a Recorder.
        hosts: logical hosts to route; every host when empty.

    Raises:
        ConfigError: respx is missing.
    """
    try:
        from respx.patterns import M
    except ImportError as problem:
        raise ConfigError("respx is not installed", hint="pip install 'imagestore[testing]'") from problem
    names = list(hosts)
    routes = [router.route(M(host=host)) for host in names] if names else [router.route()]
    # Its streams serve both kinds of client, so one function does for both.
    answer = ReplayTransport(engine).handle_request
    for route in routes:
        route.side_effect = answer
    return routes
