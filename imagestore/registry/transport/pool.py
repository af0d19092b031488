"""Connections of our own to the hosts themselves, HTTP/1.1, one pool for each set of connection settings.

A connection is kept for the next request when the answer says so and ended exactly. One that the peer closed while it
was idle, or on which something arrived that nobody asked for, is not used again. Where a new one is silent, none is
kept beside it: a proxy that serves so many connections at a time lets others stand in line, and counts idle ones too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.registry.transport import tls
from imagestore.registry.transport.bodies import body_of
from imagestore.registry.transport.faults import (
    ConnectError,
    InvalidAnswerError,
    OtherProtocolError,
    StaleError,
    TransportError,
    WaitError,
)
from imagestore.registry.transport.link import Link
from imagestore.registry.transport.message import (
    MAX_HEAD_BYTES,
    body_length,
    check_beginning,
    end_of_head,
    parse_head,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator

    from imagestore.config.connection import ConnectionSettings
    from imagestore.registry.transport.bodies import Body
    from imagestore.registry.transport.message import Fields, Head, Outgoing
    from imagestore.registry.transport.network import Exchange, Route

_MAX_IDLE_CONNECTIONS: Final = 16
_RECEIVED_BYTES: Final = 16 * 1024


class Incoming(Protocol):
    """An answer whose body has not been read; every method raises TransportError when the exchange fails."""

    @property
    def status(self) -> int:
        """HTTP status code."""

    @property
    def fields(self) -> Fields:
        """Header fields as received."""

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes of the body into a buffer; 0 only at its end."""

    def close(self) -> None:
        """Give the connection back, or drop it."""


class Exchanges(Protocol):
    """What exchanges messages: connections to the network, through a proxy, or what was given in their place."""

    def handle(self, request: Outgoing, exchange: Exchange) -> Incoming:
        """Exchange a request for an answer whose body has not been read.

        Raises:
            TransportError: that failed.
            ConfigError: a certificate file or the proxy can't be used.
            OperationCancelledError: cancelled, or past the deadline.
        """

    def close(self) -> None:
        """Close all connections."""


class Pool:
    """See Exchanges; thread-safe.

    Args:
        settings: TLS.
        route: makes connections.
        keep_alive_seconds: how long an idle one is kept.
    """

    def __init__(self, settings: ConnectionSettings, route: Route, keep_alive_seconds: float) -> None:
        self._settings = settings
        self._route = route
        self._keep_alive_seconds = keep_alive_seconds
        self._lock = threading.Lock()
        self._idle: deque[_Kept] = deque()
        # New connections on which nothing came, and whose they are.
        self._silent: dict[Link, Outgoing] = {}
        self._context: ssl.SSLContext | None = None
        # Where that context looks authorities up; empty when it has read them all.
        self._roots_folder = ""
        self._stamp: tls.Stamp = ()
        self._is_closed = False

    def handle(self, request: Outgoing, exchange: Exchange) -> Incoming:
        """See Exchanges."""
        head = request.head()
        context = self._current_context() if request.scheme == "https" else None
        kept = self._take(request)
        if kept is not None:
            try:
                return self._exchange(request, head, kept, exchange)
            except (StaleError, OtherProtocolError):
                # It was closed, or what came belongs to an answer before: late bytes that none should have had. Asking
                # again is safe where nothing changes by it (RFC 9110 section 9.2.2).
                if request.method not in ("GET", "HEAD"):
                    raise
                exchange.saw_end = False
        return self._exchange(request, head, self._connect(request, exchange, context), exchange)

    def close(self) -> None:
        """See Exchanges; those in use are closed when they are given back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, deque()
        _close_all(idle)

    def _current_context(self) -> ssl.SSLContext:
        """Certificates are renewed while we run: a change of their files makes a new one."""
        stamp = tls.stamp_of(self._settings)
        outdated: deque[_Kept] = deque()
        with self._lock:
            if self._context is None or stamp != self._stamp:
                folder = tls.quick_roots()
                self._context = tls.make_context(self._settings, roots_folder=folder)
                self._roots_folder, self._stamp = folder, stamp
                outdated, self._idle = self._idle, deque()
            context = self._context
        _close_all(outdated)
        return context

    def _whole_context(self, refused: ssl.SSLContext) -> ssl.SSLContext | None:
        """The one to try next, at last one that has read all authorities; None when the one that refused had, too."""
        with self._lock:
            if self._context is refused:
                if not self._roots_folder:
                    return None
                self._context, self._roots_folder = tls.make_context(self._settings), ""
            return self._context

    def _connect(self, request: Outgoing, exchange: Exchange, context: ssl.SSLContext | None) -> Link:
        """A new connection; one more if a certificate was refused without having read all authorities."""
        while True:
            try:
                return self._link(request, exchange, context)
            except ConnectError as error:
                # Seldom twice: files that changed meanwhile have made a new context, which hasn't read them all either.
                whole = self._whole_context(context) if context is not None and tls.is_refusal(error) else None
                if whole is None:
                    raise
                context = whole

    def _link(self, request: Outgoing, exchange: Exchange, context: ssl.SSLContext | None) -> Link:
        until = time.monotonic() + request.connect_seconds
        connection = self._route.connect(request.host, request.port, request.connect_seconds, exchange)
        link = Link(connection, lambda: self._make_room(link, request))
        if context is not None:
            link.serve(exchange)
            with _dropping(link, self._silent):
                link.secure(context, request.host, max(0.001, until - time.monotonic()))
        return link

    def _exchange(self, request: Outgoing, head: bytes, link: Link, exchange: Exchange) -> Incoming:
        link.serve(exchange)
        is_sent = False
        with _dropping(link, self._silent):
            try:
                link.send(head + request.body, request.idle_seconds)
            except WaitError:
                raise
            except TransportError:
                # A peer that refuses before it has read everything hangs up, and may have said why.
                pass
            else:
                is_sent = True
            answer, rest = read_head(link, request.idle_seconds)
            self._silent.pop(link, None)
            body = body_of(body_length(request.method, answer), link, rest, request.idle_seconds)

        def finish(*, is_reusable: bool) -> None:
            if is_reusable and is_sent and answer.keeps_connection:
                self._park(request, link)
            else:
                link.close()

        return _Answer(answer, body, link, finish)

    def _make_room(self, link: Link, request: Outgoing) -> None:
        """Close the idle connections to a host that leaves a new one waiting, and keep none while it does."""
        with self._lock:
            self._silent[link] = request
            idle = [each for each in self._idle if each.fits(request)]
            for each in idle:
                self._idle.remove(each)
        _close_all(idle)

    def _take(self, request: Outgoing) -> Link | None:
        while True:
            with self._lock:
                expired = self._expired()
                found = next((each for each in reversed(self._idle) if each.fits(request)), None)
                if found is not None:
                    self._idle.remove(found)
            _close_all(expired)
            # Readable before anything was asked: the peer closed it, or sends what nobody asked for.
            if found is None or not found.link.is_readable:
                return None if found is None else found.link
            found.link.close()

    def _park(self, request: Outgoing, link: Link) -> None:
        link.rest()
        kept = _Kept(request.scheme, request.host, request.port, link, time.monotonic())
        surplus = [kept]
        with self._lock:
            is_current = link.context is None or link.context is self._context
            # A copy, since others forget theirs without the lock.
            is_waited_for = self._silent and any(map(kept.fits, list(self._silent.values())))
            if not self._is_closed and is_current and not is_waited_for:
                self._idle.append(kept)
                surplus = self._expired()
                if len(self._idle) > _MAX_IDLE_CONNECTIONS:
                    surplus.append(self._idle.popleft())
        _close_all(surplus)

    def _expired(self) -> list[_Kept]:
        """Take out what was idle for too long; those behind are younger."""
        expired, oldest = [], time.monotonic() - self._keep_alive_seconds
        while self._idle and self._idle[0].since < oldest:
            expired.append(self._idle.popleft())
        return expired


@dataclass(frozen=True, slots=True)
class _Kept:
    """An idle connection, and since when (seconds of the monotonic clock)."""

    scheme: str
    host: str
    port: int
    link: Link
    since: float

    def fits(self, request: Outgoing) -> bool:
        return (self.host, self.port, self.scheme) == (request.host, request.port, request.scheme)


class _Answer:
    """See Incoming."""

    def __init__(self, head: Head, body: Body, link: Link, finish: Callable[..., None]) -> None:
        self.status = head.status
        self.fields = head.fields
        self._body = body
        self._link = link
        self._finish: Callable[..., None] | None = finish

    def readinto(self, buffer: memoryview) -> int:
        with _dropping(self._link):
            return self._body.readinto(buffer)

    def close(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            finish(is_reusable=self._body.is_finished)


def read_head(link: Link, idle_seconds: float) -> tuple[Head, bytes]:
    """The head of the final answer, and what came behind it; informational answers are overlooked.

    Raises:
        StaleError: the peer had hung up already.
        TransportError: it did so in between, nothing comes, or it is no HTTP.
    """
    data, piece, total = bytearray(), memoryview(bytearray(_RECEIVED_BYTES)), 0
    while True:
        searched = 0
        while (end := end_of_head(data, searched)) < 0:
            searched = len(data)
            if total + searched > MAX_HEAD_BYTES:
                raise InvalidAnswerError(f"a head of more than {MAX_HEAD_BYTES} bytes")
            data += piece[: _receive(link, piece, idle_seconds, is_first=not total and not data)]
            check_beginning(data)
        head, rest = parse_head(bytes(data[:end])), data[end:]
        if not 100 <= head.status < 200:
            return head, bytes(rest)
        if head.status == 101:
            raise InvalidAnswerError("a change of protocol that nobody asked for")
        data, total = rest, total + end


def _receive(link: Link, piece: memoryview, idle_seconds: float, *, is_first: bool) -> int:
    try:
        count = link.receive_into(piece, idle_seconds)
    except WaitError:
        raise
    except TransportError as error:
        if is_first:
            raise StaleError(*error.args) from error
        raise
    if not count:
        kind = StaleError if is_first else TransportError
        raise kind("peer closed connection without sending a whole answer")
    return count


@contextmanager
def _dropping(link: Link, silent: dict[Link, Outgoing] | None = None) -> Iterator[None]:
    """A connection on which something went wrong serves nobody any more, and isn't waited for."""
    try:
        yield
    except BaseException:
        if silent is not None:
            silent.pop(link, None)
        link.close()
        raise


def _close_all(idle: Iterable[_Kept]) -> None:
    for kept in idle:
        kept.link.close()
