"""The mirror's listening socket: TLS, and limits on the number of connections and on silent or slow ones."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import ssl
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from imagestore.errors import ConfigError, InvalidInputError, ServerError
from imagestore.mirror.app import SERVER, Handler, MirrorApp
from imagestore.util.logins import without_login

if TYPE_CHECKING:
    from imagestore.mirror.service import Mirror
    from imagestore.mirror.settings import MirrorSettings

log = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS: Final = 75.0
#: For the first request on a connection, its head included.
_FIRST_REQUEST_SECONDS: Final = 20.0
_HANDSHAKE_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 5.0
#: A client that takes none of its pending bytes for so long is disconnected. Blobs have their own limit in ``app``.
_STUCK_SECONDS: Final = 60.0
#: For the request line, and for each field: clients may send long tokens meant for the registry.
_MOST_HEAD_BYTES: Final = 32 * 1024
_BACKLOG: Final = 1024
_PORT: Final = re.compile(r"[0-9]{1,5}")


def parse_address(text: str) -> tuple[str, int]:
    """Host and port to listen at.

    Args:
        text: ``0.0.0.0:5000``, ``[::]:5000``, or ``:5000`` for all addresses; port 0 lets the system choose.

    Raises:
        InvalidInputError: it can't be read.

    >>> parse_address(":5000"), parse_address("[::1]:80")
    (('', 5000), ('::1', 80))
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        if bare and bare != "localhost":
            ipaddress.ip_address(bare)
    except ValueError:
        colon = ""
    if not colon or _PORT.fullmatch(port) is None or int(port) > 65535:
        raise InvalidInputError(
            f"mirror address {without_login(text)!r}: expected ADDRESS:PORT",
            hint="for example 0.0.0.0:5000, or :5000 for all addresses",
        )
    return bare, int(port)


class Listener:
    """Serves a mirror at an address. Start it, and stop it.

    Args:
        mirror: answers; it is started.
        host: to listen at; empty for all addresses.
        port: 0 lets the system choose.
    """

    def __init__(self, mirror: Mirror, host: str, port: int) -> None:
        self._mirror = mirror
        self._host = host
        self.port = port
        self._accepting: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self._reaper: asyncio.Task[None] | None = None
        self._waiting: dict[web.RequestHandler, float] = {}

    async def start(self, *, drain_seconds: float) -> None:
        """Listen.

        Args:
            drain_seconds: how long answers may go on after stop().

        Raises:
            ConfigError: the certificates can't be used.
            ServerError: it can't listen there.
        """
        settings = self._mirror.upstreams.settings
        context = tls_context(settings)
        application = MirrorApp(self._mirror).application()
        application.middlewares.append(self._noted)
        self._runner = web.AppRunner(application, handle_signals=False, access_log=None, shutdown_timeout=drain_seconds)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._accepting = await loop.create_server(
                self._connected,
                self._host or None,
                self.port,
                ssl=context,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if context is not None else None,
                backlog=_BACKLOG,
            )
        except OSError as error:
            await self._runner.cleanup()
            raise ServerError(f"mirror address {self._host}:{self.port}: {error.strerror or error}") from error
        self.port = self._accepting.sockets[0].getsockname()[1]
        self._reaper = asyncio.create_task(self._close_idle())

    async def stop(self) -> None:
        """Accept no more, let answers end, and close; may be called again."""
        accepting, reaper, runner = self._accepting, self._reaper, self._runner
        self._accepting = self._reaper = self._runner = None
        if accepting is not None:
            accepting.close()
        if reaper is not None:
            reaper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reaper
        if runner is not None:
            await runner.cleanup()

    def _connected(self) -> asyncio.Protocol:
        """The protocol of a new connection; above the limit it is closed at once, and its client asks its next host."""
        server = self._runner.server if self._runner is not None else None
        if server is None:
            return _Refused()
        if len(server.connections) >= self._mirror.upstreams.settings.max_connections:
            return _Refused()
        loop = asyncio.get_running_loop()
        protocol = _Connection(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # which is how aiohttp spells "none"
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            max_line_size=_MOST_HEAD_BYTES,
            max_field_size=_MOST_HEAD_BYTES,
        )
        self._waiting[protocol] = loop.time() + _FIRST_REQUEST_SECONDS
        return protocol

    @web.middleware
    async def _noted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """After its first request a connection is under aiohttp's own time limits."""
        self._waiting.pop(request.protocol, None)
        return await handler(request)

    async def _close_idle(self) -> None:
        """Close connections that send no request, or don't take their answers."""
        loop = asyncio.get_running_loop()
        stuck: dict[asyncio.WriteTransport, tuple[int, float]] = {}
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for protocol, until in list(self._waiting.items()):
                if loop.time() >= until:
                    del self._waiting[protocol]
                    protocol.force_close()
            server = self._runner.server if self._runner is not None else None
            transports = [each.transport for each in server.connections] if server is not None else []
            # Transports with pending bytes: how many, and since when their number is the same.
            waiting = {each: each.get_write_buffer_size() for each in transports if each is not None}
            stuck = {
                each: stuck[each] if each in stuck and stuck[each][0] == size else (size, loop.time())
                for each, size in waiting.items()
                if size
            }
            for each, (_, since) in stuck.items():
                if loop.time() - since >= _STUCK_SECONDS:
                    log.warning("disconnected a client that takes no bytes")
                    each.abort()


class _Connection(web.RequestHandler):
    """aiohttp's, whose own errors come from this server, too."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """See web.RequestHandler."""
        response = super().handle_error(request, status, exc, message)
        response.headers["Server"] = SERVER
        return response

    def log_exception(self, *args: Any, **named: Any) -> None:
        """Log an error with its traceback, unless it is the client's: one that sends no HTTP is a line."""
        error = named.get("exc_info")
        if isinstance(error, HttpProcessingError):
            log.debug("refused what is no HTTP request: %s", " ".join(error.message.split()))
        else:
            super().log_exception(*args, **named)


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the connection."""
        log.warning("refused a connection: too many are open")
        transport.close()


def tls_context(settings: MirrorSettings) -> ssl.SSLContext | None:
    """The listener's certificate and its demands on clients'; None for plain HTTP.

    Raises:
        ConfigError: a file can't be used.
    """
    if not settings.certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        what = settings.certificate
        context.load_cert_chain(settings.certificate, settings.key or None)
        if settings.client_ca:
            what = settings.client_ca
            context.load_verify_locations(settings.client_ca)
            # Public upstreams are served to clients without a certificate, too.
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{what}: can't be used for the mirror: {error.strerror or error}") from error
    return context
