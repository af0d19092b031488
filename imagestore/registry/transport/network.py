"""The network below HTTP: connects only where allowed, never blocks past a deadline, and stops when cancelled.

The HTTP library's own time limits apply to each single read, so a peer that drips bytes never trips them, and none of
its reads can be ended from another thread. Here every read and write passes one place, which

- ends at the operation's deadline, and for a response head at a limit for the whole head;
- fails when a body comes slower than a least rate;
- can be ended at once by the cancel token, which shuts the socket down;
- and connects to exactly the address that was checked (no second look-up, so no DNS rebinding).
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import httpcore

from imagestore.errors import ProtocolError
from imagestore.registry.transport import addresses
from imagestore.registry.transport.dial import Dial
from imagestore.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from imagestore.cancel import CancelToken

# An address that doesn't answer must not use up the time of those after it.
_LEAST_ATTEMPT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How slow a peer may be.

    Attributes:
        head_seconds: for the whole head of a response.
        least_bytes_per_second: of a body.
        window_seconds: time of waiting for bytes over which that rate is judged.
    """

    head_seconds: float = 60.0
    least_bytes_per_second: int = 1024
    window_seconds: float = 60.0


class Exchange:
    """One request and its response on the network: whose it is, until when, how fast, and over which connection."""

    def __init__(self, cancel: CancelToken, pace: Pace) -> None:
        self._cancel = cancel
        self._pace = pace
        self._waited_seconds = 0.0
        self._received = 0
        self._lock = threading.Lock()
        self._head_deadline: float | None = time.monotonic() + pace.head_seconds
        self._stream: httpcore.NetworkStream | None = None
        self._is_over = False
        #: Whether the peer closed its side while we were reading.
        self.saw_end = False

    @property
    def peer(self) -> addresses.Address | None:
        """Address at the other end; None before a connection, and for a unix socket."""
        if self._stream is None:
            return None
        try:
            found = self._stream.get_extra_info("server_addr")
        except OSError:  # closed meanwhile
            return None
        return addresses.parse(str(found[0]).partition("%")[0]) if isinstance(found, tuple) and found else None

    @property
    def is_reading_head(self) -> bool:
        """Whether a connection is there and the head of the response isn't complete."""
        return self._stream is not None and self._head_deadline is not None

    def check(self) -> None:
        """Raise when the operation was cancelled or is past its deadline."""
        self._cancel.check()

    def use(self, stream: httpcore.NetworkStream) -> None:
        """Note the connection about to be read or written.

        Raises:
            OperationCancelledError: cancelled or past the deadline.
        """
        self._stream = stream
        self._cancel.check()

    def wait_for(self, event: threading.Event, what: str) -> None:
        """Wait for something that isn't a socket.

        Raises:
            OperationCancelledError: cancelled meanwhile, or past the deadline.
            httpcore.ConnectTimeout: it lasts longer than a response's head may.
        """
        with self._cancel.on_cancel(event.set):
            is_set = event.wait(self.allowed_seconds(None))
        self._cancel.check()
        if not is_set:
            raise httpcore.ConnectTimeout(f"{what} takes too long")

    def wait_for_connection(self, event: threading.Event) -> None:
        """See wait_for()."""
        self.wait_for(event, "connecting")

    def allowed_seconds(self, timeout: float | None) -> float | None:
        """How long the next wait may last."""
        limits = [timeout, self._cancel.remaining_seconds()]
        if self._head_deadline is not None:
            limits.append(self._head_deadline - time.monotonic())
        given = [limit for limit in limits if limit is not None]
        # A timeout of zero would switch the socket to non-blocking.
        return max(0.001, min(given)) if given else None

    def note_read(self, byte_count: int, seconds: float) -> None:
        """Judge the rate of a body by the time spent waiting for it; a slow reader on our side doesn't count.

        Raises:
            httpcore.ReadTimeout: too slow over a whole window.
        """
        if self._head_deadline is not None:
            return
        self._received += byte_count
        self._waited_seconds += seconds
        if self._waited_seconds < self._pace.window_seconds:
            return
        if self._received < self._pace.least_bytes_per_second * self._waited_seconds:
            raise httpcore.ReadTimeout(f"slower than {self._pace.least_bytes_per_second} bytes per second")
        self._waited_seconds, self._received = 0.0, 0

    def head_is_read(self) -> None:
        """From now on the body is read, which has its own limits."""
        self._head_deadline = None

    def shut_down(self) -> None:
        """End a blocked read or write from another thread."""
        with self._lock:
            if self._is_over or self._stream is None:
                return
            connection = self._stream.get_extra_info("socket")
            if isinstance(connection, socket.socket):
                with contextlib.suppress(OSError):
                    # The plain socket's method: the TLS one would drop its state under a reader in mid-call.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def finish(self) -> None:
        """The connection may now serve somebody else; a late cancel must not touch it."""
        with self._lock:
            self._is_over = True


class Network(httpcore.NetworkBackend):
    """Makes connections for one pool.

    Args:
        public_only: refuse addresses that aren't public; for hosts that a server named.
        unix_socket: connect there, whatever the URL's host (for servers under test); empty for TCP.
    """

    def __init__(self, *, public_only: bool = False, unix_socket: str = "") -> None:
        self._inner = httpcore.SyncBackend()
        self._public_only = public_only
        self._unix_socket = unix_socket
        self._local = threading.local()

    @contextlib.contextmanager
    def serving(self, exchange: Exchange) -> Iterator[None]:
        """Whatever this thread reads or writes inside the block belongs to the exchange."""
        before = getattr(self._local, "exchange", None)
        self._local.exchange = exchange
        try:
            yield
        finally:
            self._local.exchange = before

    @property
    def current(self) -> Exchange | None:
        """The exchange this thread works for; None when a pool tidies up on its own."""
        found = getattr(self._local, "exchange", None)
        return found if isinstance(found, Exchange) else None

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> Stream:
        """Resolve, check and connect, one address after the other.

        Raises:
            ProtocolError: the host has no allowed address.
            httpcore.ConnectError, httpcore.ConnectTimeout: no address answered.
        """
        exchange = self.current
        allowed = exchange.allowed_seconds(timeout) if exchange is not None else timeout
        options = list(socket_options or ())
        if self._unix_socket:
            return Stream(self._inner.connect_unix_socket(self._unix_socket, allowed, options), self)
        candidates = self._resolve(host, port)
        deadline = None if allowed is None else time.monotonic() + allowed
        for position, address in enumerate(candidates):
            left = len(candidates) - position
            share = None
            if deadline is not None:
                rest = deadline - time.monotonic()
                share = max(0.001, min(rest, max(rest / left, _LEAST_ATTEMPT_SECONDS)))
            try:
                connect = functools.partial(self._inner.connect_tcp, address, port, share, local_address, options)
                if exchange is None:
                    return Stream(connect(), self)
                return Stream(Dial(connect).result(exchange.wait_for_connection), self)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if left == 1 or (deadline is not None and time.monotonic() >= deadline):
                    raise
        raise AssertionError("unreachable: the last candidate raises")

    def _resolve(self, host: str, port: int) -> list[str]:
        resolved = _Lookup(host, port).result(self.current)
        if not self._public_only:
            return resolved
        public = [text for text in resolved if _is_public_text(text)]
        if not public:
            raise ProtocolError(
                f"{host}: expected a public address, since a server named this host, found {', '.join(resolved)}",
                host=host,
                hint=addresses.PRIVATE_HINT,
            )
        return public


class _Lookup:
    """A name resolution that can be left behind: the system's own can't be ended, and may take a minute."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._is_done = threading.Event()
        self._addresses: list[str] = []
        self._error: Exception | None = None

    def result(self, exchange: Exchange | None) -> list[str]:
        """Addresses in the system's order.

        Raises:
            httpcore.ConnectError: there are none.
            OperationCancelledError: cancelled meanwhile, or past the deadline.
        """
        if exchange is None or addresses.parse(self._host) is not None:
            self._run()
        else:
            threading.Thread(target=self._run, name=f"resolve {self._host}", daemon=True).start()
            exchange.wait_for(self._is_done, "name resolution")
        if self._error is not None:
            raise httpcore.ConnectError(f"name resolution failed: {self._error}") from self._error
        return self._addresses

    def _run(self) -> None:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        except (OSError, UnicodeError) as error:
            self._error = error
        finally:
            self._is_done.set()


def _is_public_text(text: str) -> bool:
    # A link-local address comes with its zone behind '%'.
    address = addresses.parse(text.partition("%")[0])
    return address is not None and addresses.is_public(address)


class Stream(httpcore.NetworkStream):
    """A connection whose every wait is bounded by the exchange it serves at the moment."""

    def __init__(self, inner: httpcore.NetworkStream, network: Network) -> None:
        self._inner = inner
        self._network = network
        #: Set by whoever knows that the last response ended exactly here.
        self.is_between_messages = False
        #: Takes the connection when its user gives it up between two messages; without one, it is closed.
        self.on_give_up: Callable[[Stream], None] | None = None

    def readinto(self, buffer: memoryview, timeout: float) -> int:
        """Read what is there into a buffer, without the library; 0 when the peer closed its side.

        Raises:
            httpcore.ReadTimeout, httpcore.ReadError: nothing comes, or the connection broke.
            OperationCancelledError: cancelled, or past the deadline.
        """
        exchange = self._network.current
        connection = self._inner.get_extra_info("socket")
        assert exchange is not None
        assert isinstance(connection, socket.socket)
        exchange.use(self)
        started = time.monotonic()
        try:
            connection.settimeout(exchange.allowed_seconds(timeout))
            count = connection.recv_into(buffer)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ReadError(error) from error
        if not count:
            exchange.saw_end = True
        exchange.note_read(count, time.monotonic() - started)
        return count

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        exchange = self._network.current
        if exchange is None:
            return self._inner.read(max_bytes, timeout)
        exchange.use(self)
        started = time.monotonic()
        data = self._inner.read(max_bytes, exchange.allowed_seconds(timeout))
        if not data:
            exchange.saw_end = True
        exchange.note_read(len(data), time.monotonic() - started)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        exchange = self._network.current
        if exchange is not None:
            exchange.use(self)
            timeout = exchange.allowed_seconds(timeout)
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        if self.is_between_messages and self.on_give_up is not None:
            self.on_give_up(self)
        else:
            self.drop()

    def drop(self) -> None:
        """Close the connection whatever it might still be good for."""
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        exchange = self._network.current
        if exchange is not None:
            exchange.use(self)
            timeout = exchange.allowed_seconds(timeout)
        secure = Stream(self._inner.start_tls(ssl_context, server_hostname, timeout), self._network)
        secure.on_give_up = self.on_give_up
        return secure

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
