"""The network below HTTP: connects only where allowed, never blocks past a deadline, and stops when cancelled.

A time limit for a single read doesn't stop a peer that sends a byte now and then, and a blocked read can't be ended
from another thread. So ``connection.py`` asks an Exchange before each wait how long it may last:

- A wait ends at the operation's deadline, and for a response head at a limit for the whole head.
- A body that arrives slower than a least rate fails.
- Cancelling shuts the socket down, which ends a wait at once.
- The address that was checked is connected to: no second look-up, so no DNS rebinding.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx

from imagestore.errors import ProtocolError
from imagestore.registry.transport import addresses

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from imagestore.util.cancel import CancelToken

#: Where a request's extensions have its Exchange.
EXCHANGE: Final = "imagestore.exchange"
CONNECT_SECONDS: Final = 10.0
# An address that doesn't answer must not use up the time for those after it.
_LEAST_ATTEMPT_SECONDS: Final = 2.0

#: What a connect that needs time says: on POSIX systems, and on Windows.
_CONNECTING: Final = (errno.EINPROGRESS, getattr(errno, "WSAEWOULDBLOCK", errno.EINPROGRESS))

#: Family and address as the system gives them, an IPv6 zone included.
Resolved = tuple[int, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of one exchange, in seconds, and how slow a peer may be.

    Attributes:
        connect: for a connection, TLS included.
        idle: longest time without a byte.
        commit: instead of ``idle`` and ``head`` after a write: a registry may have to assemble a large upload, and a
            proxy may take a whole body before it passes it on.
        keep_alive: how long an idle connection is kept.
        head: for the whole head of a response.
        body: a long body must be fast enough to arrive whole in this time.
        window: time of waiting for bytes over which the rate of a body is judged.
        least_bytes_per_second: of any body.
    """

    connect: float = CONNECT_SECONDS
    idle: float = 30.0
    commit: float = 600.0
    keep_alive: float = 30.0
    head: float = 60.0
    body: float = 12 * 3600.0
    window: float = 60.0
    least_bytes_per_second: int = 1024


_DEFAULT_TIMEOUTS: Final = Timeouts()


class Exchange:
    """One request and its response on the network: cancel token, time limits, rate, and the connection in use."""

    def __init__(self, cancel: CancelToken, timeouts: Timeouts = _DEFAULT_TIMEOUTS) -> None:
        self._cancel = cancel
        self._timeouts = timeouts
        self._waited_seconds = 0.0
        self._received = 0
        self._least_rate: float = timeouts.least_bytes_per_second
        # Re-entrant: a signal handler that cancels may run while this thread holds it.
        self._lock = threading.RLock()
        self._head_deadline: float | None = time.monotonic() + timeouts.head
        self._socket: socket.socket | None = None
        self._is_over = False
        #: Whether the transport returned a response.
        self.is_answered = False
        #: Whether a connection to a proxy is being made, and nothing was sent to it yet.
        self.is_reaching_proxy = False
        #: Whether a TLS handshake has begun and isn't complete.
        self.is_in_handshake = False

    @property
    def peer(self) -> str | None:
        """The peer's address, without a zone; None before a connection, and for a unix socket."""
        if self._socket is None:
            return None
        try:
            found = self._socket.getpeername()
        except OSError:  # closed since then
            return None
        return str(found[0]).partition("%")[0] if isinstance(found, tuple) and found else None

    @property
    def is_reading_head(self) -> bool:
        """Whether there is a connection, and the head of the response isn't complete."""
        return self._socket is not None and self._head_deadline is not None

    def check(self) -> None:
        """Raise OperationCancelledError if the operation was cancelled or is past its deadline."""
        self._cancel.check()

    def cancellable(self) -> AbstractContextManager[None]:
        """While the block runs, a cancellation ends blocked reads and writes."""
        return self._cancel.on_cancel(self.shut_down)

    def use(self, connection: socket.socket) -> None:
        """Note the connection that is about to be read or written."""
        self._socket = connection
        self._cancel.check()

    def wait_for(self, event: threading.Event, what: str) -> None:
        """Wait for an event of another thread.

        Raises:
            httpx.ConnectTimeout: it lasts longer than a response's head may.
        """
        with self._cancel.on_cancel(event.set):
            is_set = event.wait(self.allowed_seconds(None))
        self._cancel.check()
        if not is_set:
            raise httpx.ConnectTimeout(f"{what} takes too long")

    def allowed_seconds(self, timeout: float | None) -> float | None:
        """How long the next wait may last."""
        limits = [timeout, self._cancel.remaining_seconds()]
        if self._head_deadline is not None:
            limits.append(self._head_deadline - time.monotonic())
        given = [limit for limit in limits if limit is not None]
        # A timeout of zero would make the socket non-blocking.
        return max(0.001, min(given)) if given else None

    def note_read(self, byte_count: int, seconds: float) -> None:
        """Judge the rate of a body by the time spent waiting for the peer; a slow reader on our side doesn't count.

        Raises:
            httpx.ReadTimeout: too slow over a whole window.
        """
        if self._head_deadline is not None:
            return
        self._received += byte_count
        self._waited_seconds += seconds
        if self._waited_seconds < self._timeouts.window:
            return
        if self._received < self._least_rate * self._waited_seconds:
            raise httpx.ReadTimeout(f"slower than {self._least_rate:.0f} bytes per second")
        self._waited_seconds, self._received = 0.0, 0

    def note_sending(self) -> None:
        """A part of the request's body is about to be sent: the time for the response's head starts again."""
        self._head_deadline = time.monotonic() + self._timeouts.head

    def note_head(self, body_bytes: int | None = None) -> None:
        """The head of the response is complete; from now on the limits for a body of this length count."""
        self._head_deadline = None
        timeouts = self._timeouts
        self._least_rate = max(timeouts.least_bytes_per_second, (body_bytes or 0) / timeouts.body)

    def shut_down(self) -> None:
        """End a blocked read or write from another thread."""
        with self._lock:
            if self._is_over or self._socket is None:
                return
            with contextlib.suppress(OSError):
                # The plain socket's method: that of ssl.SSLSocket drops its state under a reader in mid-call.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def finish(self) -> None:
        """The connection may now serve another request; a late cancel must not touch it."""
        with self._lock:
            self._is_over = True


def connect(host: str, port: int, seconds: float, exchange: Exchange, *, public_only: bool = False) -> socket.socket:
    """Resolve, check and connect, one address after the other, in so many seconds.

    Raises:
        ProtocolError: the host has no allowed address.
        httpx.ConnectError, httpx.ConnectTimeout: no address answered.
    """
    candidates = resolve(host, port, exchange, public_only=public_only)
    deadline = time.monotonic() + (exchange.allowed_seconds(seconds) or seconds)
    for left in range(len(candidates), 0, -1):
        rest = deadline - time.monotonic()
        share = max(0.001, min(rest, max(rest / left, _LEAST_ATTEMPT_SECONDS)))
        try:
            return _connect(candidates[-left], share, exchange)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            if left == 1 or time.monotonic() >= deadline:
                raise
    raise AssertionError("unreachable: the last candidate raises")


def connect_unix(path: str, seconds: float, exchange: Exchange) -> socket.socket:
    """Connect to a unix socket; raises as connect()."""
    if sys.platform != "win32":
        return _connect((socket.AF_UNIX, path), seconds, exchange)
    raise httpx.ConnectError("Python has no unix sockets on Windows")


def is_ready(connection: socket.socket, seconds: float, *, is_writing: bool) -> bool:
    """Whether something can be read from a socket, or written to it, within some seconds."""
    if sys.platform == "win32":
        reading, writing = ([], [connection]) if is_writing else ([connection], [])
        # A refused connection is an exceptional condition.
        return any(select.select(reading, writing, writing, seconds))
    else:
        # select() takes no descriptor above 1023.
        waiting = select.poll()
        waiting.register(connection, select.POLLOUT if is_writing else select.POLLIN)
        return bool(waiting.poll(1000 * seconds))


def resolve(host: str, port: int, exchange: Exchange, *, public_only: bool) -> list[Resolved]:
    """Addresses of a host, those that are allowed, in the system's order.

    Raises:
        ProtocolError: none is allowed.
        httpx.ConnectError: there are none.
    """
    resolved = _looked_up(host, port, exchange)
    if not public_only:
        return resolved
    public = [each for each in resolved if _is_public_text(str(each[1][0]))]
    if not public:
        named = ", ".join(str(each[1][0]) for each in resolved)
        raise ProtocolError(
            f"{host}: expected a public address, since a server named this host, found {named}",
            host=host,
            hint=addresses.PRIVATE_HINT,
        )
    return public


def _connect(to: tuple[int, Any], seconds: float, exchange: Exchange) -> socket.socket:
    family, address = to
    try:
        connection = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:  # no such address family here, or too many open files
        raise httpx.ConnectError(str(error)) from error
    try:
        connection.setblocking(False)
        status = connection.connect_ex(address)
        if status in _CONNECTING:
            # From here on a cancellation ends the wait.
            exchange.use(connection)
            is_there = is_ready(connection, seconds, is_writing=True)
            exchange.check()
            if not is_there:
                raise httpx.ConnectTimeout("no connection")
            status = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if status:
            raise OSError(status, os.strerror(status))
        if family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        connection.close()
        raise httpx.ConnectError(str(error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _looked_up(host: str, port: int, exchange: Exchange) -> list[Resolved]:
    """A host's addresses in the system's order; the wait can be cancelled, which the system's look-up can't."""
    found: Future[list[Resolved]] = Future()

    def _look_up() -> None:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.set_result(list(dict.fromkeys((int(entry[0]), entry[4]) for entry in entries)))
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            found.set_exception(error)

    if addresses.parse(host) is not None:
        _look_up()
    else:
        is_done = threading.Event()
        found.add_done_callback(lambda _: is_done.set())
        try:
            # Not an executor's thread: Python waits for those at its end, and a look-up may take a minute.
            threading.Thread(target=_look_up, name=f"resolve {host}", daemon=True).start()
        except RuntimeError:
            # No more threads for this process: without one, the look-up can't be cancelled.
            _look_up()
        exchange.wait_for(is_done, "name resolution")
    try:
        return found.result()
    except (OSError, UnicodeError) as error:
        raise httpx.ConnectError(str(error)) from error


def _is_public_text(text: str) -> bool:
    # A link-local address comes with its zone behind '%'.
    address = addresses.parse(text.partition("%")[0])
    return address is not None and addresses.is_public(address)
