"""The loopback server: the engine behind real sockets, one listener for each logical host.

A client asks ``127.0.0.1:<port>``; the port says which logical host it means, and addresses in answers (Location,
Link, WWW-Authenticate) are rewritten from logical names to listeners on the way out. With TLS each listener has a
certificate of a throw-away authority for its logical name, ``localhost`` and 127.0.0.1. Listeners for hosts that an
answer mentions are opened on demand, so redirects to other hosts work.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from imagestore.errors import ConfigError, ImageStoreError
from imagestore.oci import Reference
from imagestore.testing.engine.messages import Request, error
from imagestore.testing.servers.http1 import Incoming, WireError, read_request, reset, send_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from imagestore.testing.engine.engine import RequestHandler
    from imagestore.testing.servers.authority import Authority

    #: Answers one request; True when the connection can go on.
    Exchange = Callable[[socket.socket, "Listener", Incoming], bool]

_ADDRESS: Final = re.compile(r"(https?)://([A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?)(?=[/\"?;,>#]|$)")
_LOOPBACK: Final = "127.0.0.1"
_HANDSHAKE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Listener:
    """What stands for one logical host: a listening socket, or the inside of a proxy's tunnel (without one)."""

    scheme: str
    host: str
    context: ssl.SSLContext | None
    address: str
    socket: socket.socket | None = None

    @classmethod
    def open(cls, scheme: str, host: str, context: ssl.SSLContext | None, port: int = 0) -> Listener:
        """Listen; port 0 is any free one.

        Raises:
            ConfigError: the port can't be had.
        """
        try:
            listening = socket.create_server((_LOOPBACK, port), backlog=128)
        except OSError as problem:
            raise ConfigError(
                f"listener for {host}: port {port} of {_LOOPBACK}: {os.strerror(problem.errno or 0)}",
                hint="choose another port, or none for any free one" if port else "",
            ) from problem
        return cls(scheme, host, context, f"{_LOOPBACK}:{listening.getsockname()[1]}", listening)


class LoopbackServer:
    """Serves an engine on 127.0.0.1; use it as a context manager, once. It has addresses inside of the block only.

    Args:
        engine: decides the answers.
        hosts: logical hosts to open listeners for; the first is the main one.
        authority: with one, logical ``https`` is TLS, else everything is plain HTTP.
        ports: fixed ports for some logical hosts; any free one otherwise.
    """

    def __init__(
        self,
        engine: RequestHandler,
        hosts: Sequence[str],
        *,
        authority: Authority | None = None,
        ports: Mapping[str, int] | None = None,
    ) -> None:
        self._ports = dict(ports or {})
        self.engine = engine
        self._names = tuple(hosts)
        self._authority = authority
        self._lock = threading.Lock()
        self._listeners: dict[tuple[str, str], Listener] = {}
        self._connections: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._is_open = False
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        """Listen for every host.

        Raises:
            ConfigError: a fixed port can't be had, or the server was closed before; nothing listens then.
        """
        if self._stopping.is_set():
            raise ConfigError("server: it was closed, and listens no more", hint="make a new one for each with block")
        self._is_open = True
        try:
            for host in self._names:
                self._open("https", host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """``127.0.0.1:<port>`` of the main logical host; still readable after the server's block.

        Raises:
            ConfigError: the server didn't listen yet.
        """
        return self._open("https", self._main()).address

    @property
    def hosts(self) -> Mapping[str, str]:
        """Logical host to ``127.0.0.1:<port>``."""
        with self._lock:
            return {host: one.address for (scheme, host), one in self._listeners.items() if scheme == "https"}

    @property
    def is_tls(self) -> bool:
        """Whether logical https is TLS on the wire."""
        return self._authority is not None

    @property
    def authority(self) -> Authority:
        """Issues the certificates: ``authority.pem`` is for a client's file, ``client_context()`` for Python's.

        Raises:
            ConfigError: the server speaks plain HTTP.
        """
        if self._authority is None:
            raise ConfigError("server: it speaks plain HTTP and has no authority", hint="serve with tls=True")
        return self._authority

    @property
    def url(self) -> str:
        """Base address of the main logical host; see url_of()."""
        return self.url_of(self._main())

    def url_of(self, host: str) -> str:
        """Base address of a logical host, without a slash at the end.

        Raises:
            ConfigError: the server doesn't listen.
        """
        return f"{'https' if self.is_tls else 'http'}://{self._open('https', host).address}"

    def reference(self, text: str) -> str:
        """A reference with its logical host replaced by the listener: what a plain client pulls.

        Raises:
            InvalidReferenceError: the text is not a reference.
            ConfigError: the server doesn't listen.
        """
        name = Reference.parse(text)
        return str(replace(name, host=self._open("https", name.host).address))

    def close(self) -> None:
        """Stop listening, end every connection, wait for the threads."""
        self._stopping.set()
        with self._lock:
            listeners = list(self._listeners.values())
            connections = list(self._connections)
            threads = list(self._threads)
        for listener in listeners:
            if listener.socket is not None:
                with contextlib.suppress(OSError):
                    listener.socket.shutdown(socket.SHUT_RDWR)
                listener.socket.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                _shut_down(connection)
        for thread in threads:
            thread.join(timeout=5)

    def _main(self) -> str:
        if not self._names:
            raise ConfigError("server: it has no logical host", hint="name the host whose address is wanted")
        return self._names[0]

    def _open(self, scheme: str, host: str) -> Listener:
        # Without certificates one plain listener stands for both schemes.
        scheme = scheme if self._authority is not None else "https"
        with self._lock:
            known = self._listeners.get((scheme, host))
            if known is not None:
                return known
            if not self._is_open:  # close() would never be called
                raise ConfigError(f"listener for {host}: the server doesn't listen yet", hint="use it in a with block")
            if self._stopping.is_set():  # close() was called already, and would miss this one
                raise ConfigError(f"listener for {host}: the server is closed", hint="ask inside of its with block")
            context = self._context(host) if scheme == "https" else None
            port = self._ports.get(host, 0) if scheme == "https" else 0
            listener = self._listeners[scheme, host] = Listener.open(scheme, host, context, port)
        self._start(self._accept, listener)
        return listener

    def _context(self, host: str) -> ssl.SSLContext | None:
        return self._authority.server_context(host) if self._authority is not None else None

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True, name="recorded-registry")  # type: ignore[arg-type]
        with self._lock:
            # Started inside the lock: the next call drops threads that aren't alive.
            thread.start()
            self._threads = {one for one in self._threads if one.is_alive()} | {thread}

    def _accept(self, listener: Listener) -> None:
        while not self._stopping.is_set() and listener.socket is not None:
            try:
                connection, _ = listener.socket.accept()
            except OSError:
                return
            self._start(self._connection, connection, listener)

    def _connection(self, connection: socket.socket, listener: Listener) -> None:
        with self._registered(connection):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if listener.context is None:
                self._talk(connection, listener, self._exchange)
            else:
                self._talk_tls(connection, listener, listener.context, self._exchange)

    def _talk_tls(self, plain: socket.socket, listener: Listener, context: ssl.SSLContext, exchange: Exchange) -> None:
        # The TLS object takes the descriptor over, and it alone can be shut down from then on: it is registered before
        # the handshake, so that a client which never makes one can't hold up close().
        connection = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        with self._registered(connection):
            connection.settimeout(_HANDSHAKE_SECONDS)
            connection.do_handshake()
            connection.settimeout(None)
            self._talk(connection, listener, exchange)

    @contextlib.contextmanager
    def _registered(self, connection: socket.socket) -> Iterator[None]:
        """Close the connection at the end; close() ends it earlier, and one that comes after close() ends here."""
        with self._lock:
            self._connections.add(connection)
        try:
            if self._stopping.is_set():
                _shut_down(connection)
            yield
        except (OSError, WireError):
            reset(connection)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _talk(self, connection: socket.socket, listener: Listener, exchange: Exchange) -> None:
        with connection.makefile("rb") as stream:
            while not self._stopping.is_set():
                try:
                    incoming = read_request(
                        stream, reply_continue=lambda: connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    )
                except WireError as problem:
                    self._refuse(connection, problem)
                    return
                if incoming is None or not exchange(connection, listener, incoming):
                    return

    def _refuse(self, connection: socket.socket, problem: WireError) -> None:
        refused = error(problem.status, "SIZE_INVALID" if problem.status == 413 else "UNSUPPORTED", str(problem))
        send_reply(connection, refused, "GET", stopping=self._stopping, is_last=True)

    def _exchange(self, connection: socket.socket, listener: Listener, incoming: Incoming) -> bool:
        return self._answer(connection, incoming.to_request(listener.scheme, listener.host), is_local=True)

    def _answer(self, connection: socket.socket, request: Request, *, is_local: bool) -> bool:
        """Answer one request; ``is_local`` rewrites logical addresses. True when the connection can go on."""
        answered = None
        try:
            answered = self.engine.answer(request)
            reply = answered.reply
            if is_local:
                fields = reply.fields.readdressed(lambda value: _ADDRESS.sub(self._local_address, value))
                reply = replace(reply, fields=fields)
        except ImageStoreError as problem:
            # A body is missing, a fault doesn't fit, or no listener can be opened: reported like an unexpected request.
            text = f"no answer to {request.method} {request.scheme}://{request.host}{request.path}: {problem}"
            if not self._stopping.is_set():  # then it is only that nothing is opened any more
                self.engine.ledger.note_unexpected(text)
            refused = error(500, "UNKNOWN", text, kind="unexpected")
            sent = send_reply(connection, refused, request.method, stopping=self._stopping, is_last=True)
            if answered is not None:
                answered.end(sent_bytes=sent.body_bytes, ending=sent.ending)
            return False
        is_last = request.fields.get("Connection").lower() == "close"
        sent = send_reply(connection, reply, request.method, stopping=self._stopping, is_last=is_last)
        answered.end(sent_bytes=sent.body_bytes, ending=sent.ending)
        return sent.is_reusable

    def _local_address(self, found: re.Match[str]) -> str:
        listener = self._open(found[1], found[2].lower())
        return f"{'https' if listener.context is not None else 'http'}://{listener.address}"


def _shut_down(connection: socket.socket) -> None:
    # A TLS object's own shutdown() takes its state from under the thread that is using it.
    socket.socket.shutdown(connection, socket.SHUT_RDWR)
