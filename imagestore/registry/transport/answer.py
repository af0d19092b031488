"""A response whose body is read piece by piece, within limits."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from imagestore.errors import ProtocolError
from imagestore.patterns import pattern
from imagestore.pieces import PieceReader
from imagestore.registry.exchange import Headers
from imagestore.registry.transport import urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager, ExitStack
    from types import TracebackType
    from typing import Self

    from imagestore.registry.transport import addresses
    from imagestore.registry.transport.direct import DirectBody

_MAX_HEADER_COUNT: Final = 256
_MAX_HEADER_BYTES: Final = 64 * 1024
_NUMBER: Final = pattern(r"[0-9]{1,19}")


def check_head(fields: Sequence[tuple[bytes, bytes]], host: str, status: int) -> None:
    """Bound the head of a response.

    Raises:
        ProtocolError: too many or too long header fields.
    """
    size = sum(len(name) + len(value) for name, value in fields)
    if len(fields) > _MAX_HEADER_COUNT or size > _MAX_HEADER_BYTES:
        raise ProtocolError(
            f"{host}: expected at most {_MAX_HEADER_COUNT} header fields and {_MAX_HEADER_BYTES} bytes of them, "
            f"found {len(fields)} with {size} bytes",
            host=host,
            status=status,
        )


class Answer:
    """Response (see exchange.Response) over an iterator of pieces.

    Args:
        status: HTTP status.
        fields: header fields as received.
        url: absolute address that answered.
        peer: network address that answered; None when unknown.
        pieces: the body as it comes off the wire.
        direct: makes what reads the rest of the body, given the length of the first piece; None, or answering None,
            where only ``pieces`` can.
        guard: wraps each step of reading; translates errors.
        on_close: what to undo when closed.
    """

    def __init__(
        self,
        status: int,
        fields: Sequence[tuple[bytes, bytes]],
        *,
        url: str,
        peer: addresses.Address | None,
        pieces: Iterator[bytes],
        direct: Callable[[int], DirectBody | None] | None = None,
        guard: Callable[[], AbstractContextManager[None]],
        on_close: ExitStack,
    ) -> None:
        self.status = status
        self.headers = Headers(tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields))
        self.url = url
        self.peer = peer
        self._pieces = pieces
        self._reader = PieceReader(pieces)
        self._make_direct = direct
        self._direct: DirectBody | None = None
        self._guard = guard
        self._on_close = on_close

    def chunks(self) -> Iterator[bytes]:
        """Body bytes in the sizes the transport reads; asking for another size costs two thirds of the throughput."""
        while True:
            with self._guard():
                piece = next(self._pieces, None)
            if piece is None:
                return
            if piece:
                yield piece

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes of the body into a buffer; 0 only at its end."""
        with self._guard():
            if self._make_direct is not None:
                self._begin_direct(self._make_direct)
            count = self._reader.readinto(buffer)
            return count if count or self._direct is None else self._direct.readinto(buffer)

    def _begin_direct(self, make: Callable[[int], DirectBody | None]) -> None:
        piece = next(self._pieces, b"")
        self._make_direct, self._direct = None, make(len(piece))
        rest = self._pieces if self._direct is None else ()
        self._reader = PieceReader(itertools.chain((piece,), rest))

    def read(self, limit_bytes: int) -> bytes:
        """The whole body; see Response."""
        announced = self.headers.get("Content-Length")
        if _NUMBER.fullmatch(announced) and int(announced) > limit_bytes:
            raise self._too_long(f"announces {announced} bytes", limit_bytes)
        whole = bytearray()
        for piece in self.chunks():
            whole += piece
            if len(whole) > limit_bytes:
                raise self._too_long("goes on", limit_bytes)
        return bytes(whole)

    def close(self) -> None:
        """Give the connection back, or drop it; may be called again."""
        self._on_close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()

    def _too_long(self, found: str, limit_bytes: int) -> ProtocolError:
        host = urls.host_port(urls.origin_of(self.url))
        return ProtocolError(
            f"{host}: expected a response body of at most {limit_bytes} bytes, this one {found}",
            host=host,
            status=self.status,
        )
