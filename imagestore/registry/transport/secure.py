"""TLS over a connected socket, which is read in large pieces.

An ssl.SSLSocket reads each record in two small pieces, and the system acknowledges each to the peer: a fifth of what
receiving costs. Here the socket is read half a mebibyte at a time, and the records are taken from memory.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Final, cast

from imagestore.registry.transport.faults import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

# Memory of its own, for heads and small documents. Where there is room for more, records are received where their
# content will be.
_OWN_BYTES: Final = 64 * 1024
# Each connection holds as much once more, and a third: TLS takes records from there.
_MOST_RAW_BYTES: Final = 512 * 1024
# As much as the buffer takes.
_ANY_LENGTH: Final = 1 << 30


class SecureSocket:
    """A client's end of TLS; shake hands first.

    Behind what was read, a buffer may hold anything: records that are to be read next, or a part of them.

    Args:
        receive: reads from the connection, within its limits, which hold for each read: one record may take many.
        send: writes all it is given.
        context: whom to trust, and what to show.
        host: whom the certificate must name.
    """

    def __init__(
        self,
        receive: Callable[[memoryview], int],
        send: Callable[[bytes], None],
        context: ssl.SSLContext,
        host: str,
    ) -> None:
        self._receive = receive
        self._send = send
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        # As bytes, or the codec for international names would be loaded.
        name = host.encode("ascii") if host.isascii() else host
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._raw: memoryview | None = None
        # What ended a read that had bytes to hand out first.
        self._failure: ssl.SSLError | None = None

    def handshake(self) -> None:
        """Agree on keys, and check the certificate.

        Raises:
            ssl.SSLError, OSError: as ssl.SSLSocket.
        """
        try:
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    self._exchange_raw()
                else:
                    break
        except ssl.SSLError:
            # The peer is told why, if it still listens.
            with contextlib.suppress(OSError, TransportError):
                self._flush()
            raise
        self._flush()

    def recv_into(self, buffer: memoryview) -> int:
        """Read what is there; 0 when the peer closed its side, with or without saying so in TLS.

        What came before something failed is handed out first.

        Raises:
            ssl.SSLError, OSError: as ssl.SSLSocket.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        while True:
            try:
                return self._take_records(buffer)
            except ssl.SSLWantReadError:
                self._exchange_raw(buffer)
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    def _take_records(self, buffer: memoryview) -> int:
        """The records that are here, as far as they fit; each takes a call, so nothing else may be done for each."""
        size, filled = len(buffer), 0
        read = cast("Callable[[int, memoryview], int]", self._tls.read)
        try:
            # With a buffer it answers how many bytes it took.
            while filled < size and (count := read(_ANY_LENGTH, buffer[filled:])):
                filled += count
        except ssl.SSLError as error:
            if not filled:
                raise
            # Those that would come again come again.
            if not isinstance(error, ssl.SSLWantReadError | ssl.SSLZeroReturnError | ssl.SSLEOFError):
                self._failure = error
        return filled

    def send(self, data: memoryview) -> int:
        """Write all of it, and say how much that was.

        Raises:
            ssl.SSLError, OSError: as ssl.SSLSocket.
        """
        count = self._tls.write(data)
        self._flush()
        return count

    @property
    def has_received(self) -> bool:
        """Whether bytes (or what is no TLS) came that were not read."""
        return bool(self._failure or self._tls.pending() or self._incoming.pending)

    def rest(self) -> None:
        """Hold no memory while nothing is read."""
        self._raw = None

    def _exchange_raw(self, room: memoryview | None = None) -> None:
        # Keys are renewed in mid-stream now and then, which has to be answered.
        self._flush()
        if room is None or len(room) <= _OWN_BYTES:
            room = self._raw = self._raw or memoryview(bytearray(_OWN_BYTES))
        raw = room[:_MOST_RAW_BYTES]
        count = self._receive(raw)
        if count:
            self._incoming.write(raw[:count])
        else:
            self._incoming.write_eof()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._send(self._outgoing.read())
