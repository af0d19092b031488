"""A response whose body is read piece by piece, within limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import ProtocolError
from imagestore.registry.exchange import Headers
from imagestore.registry.transport import urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager, ExitStack
    from types import TracebackType
    from typing import Self


_MAX_HEADER_COUNT: Final = 256
_MAX_HEADER_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 64 * 1024
_NUMBER: Final = re.compile(r"[0-9]{1,19}")


class Readable(Protocol):
    """Bytes that are read into buffers."""

    def readinto(self, buffer: memoryview) -> int:
        """0 only at the end."""


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
    """Response (see exchange.Response) over what reads its body.

    Args:
        status: HTTP status.
        fields: header fields as received.
        url: absolute address that answered.
        peer: network address that answered; None when unknown.
        body: reads it.
        guard: wraps each step of reading; translates errors.
        on_close: what to undo when closed.
        proxy: through which it came, if that may have answered itself.
    """

    def __init__(
        self,
        status: int,
        fields: Sequence[tuple[bytes, bytes]],
        *,
        url: str,
        peer: str | None,
        body: Readable,
        guard: Callable[[], AbstractContextManager[None]],
        on_close: ExitStack,
        proxy: str = "",
    ) -> None:
        self.status = status
        self.headers = Headers(tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields))
        self.url = url
        self.peer = peer
        self.proxy = proxy
        self._body = body
        self._guard = guard
        self._on_close = on_close

    def chunks(self) -> Iterator[bytes]:
        """The body in pieces of at most 64 KiB."""
        buffer = memoryview(bytearray(_PIECE_BYTES))
        while count := self.readinto(buffer):
            yield bytes(buffer[:count])

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes of the body into a buffer; 0 only at its end."""
        with self._guard():
            return self._body.readinto(buffer)

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
