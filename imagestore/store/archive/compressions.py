"""Compressed streams of archives and layers: recognized by their first bytes, decompressed in pieces.

Formats are those that skopeo and podman read: gzip (RFC 1952), bzip2, xz, zstd (RFC 8878). Several members or frames
in a row are one stream. Each output piece is bounded, so that a few bytes can't become gigabytes in memory.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import lzma
import re
import sys
import threading
import zlib
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import DocumentError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
#: Place of the byte behind it, and its bit that says that the window is the whole content.
_ZSTD_DESCRIPTOR: Final = 4
_ZSTD_SINGLE_SEGMENT: Final = 0x20
_ZSTD_RESERVED: Final = 0x08
_LEAST_WINDOW_LOG: Final = 10
#: Number of first bytes that identify the compression.
HEAD_BYTES: Final = 16
# bzip2: includes the magic number of a block or of an empty stream's end, since file names may begin with "BZh".
# zstd: a frame, or a skippable frame, which parallel compressors write first.
_HEADS: Final = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bzip2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
}
_PIECE: Final = 1024 * 1024
#: Compressed bytes per call of a decoder. It copies the input after a member's end, and there may be an end every 20
#: bytes: so few bytes at first and after an end, then more, since each call releases and takes Python's lock (GIL).
_LEAST_FED: Final = 32 * 1024
_MOST_FED: Final = 1024 * 1024
# A stream states how far back it refers: its window, and the memory that its reader needs. Any usual compression level
# has less than 128 MiB (xz -9: 64 MiB, zstd --long: 128 MiB); xz needs some more for itself.
_USUAL_WINDOW_BYTES: Final = 128 * 1024 * 1024
_XZ_MEMORY_BYTES: Final = _USUAL_WINDOW_BYTES + 1024 * 1024
# What lzma says of a stream that needs more; it has no other sign.
_XZ_NEEDS_MORE: Final = "Memory usage limit"
#: The largest window that is read, as by containerd and podman: that of ``zstd --long=29``.
MOST_WINDOW_BYTES: Final = 512 * 1024 * 1024
#: Of all decoders of this process, one has a window of more than the usual size.
_LARGE_WINDOW: Final = threading.Lock()
_TURN_SECONDS: Final = 0.1
# zlib's number for "with gzip's header and trailer".
_GZIP_WINDOW: Final = 31


class _Decoder(Protocol):
    """What the decoders of bz2, lzma and zstd have in common."""

    @property
    def eof(self) -> bool:
        """Whether the end of the member or frame was reached."""

    @property
    def needs_input(self) -> bool:
        """Whether decompress() has no more output without further input."""

    @property
    def unused_data(self) -> bytes:
        """Input bytes after the end of the member or frame; empty before the end."""

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """At most ``max_length`` bytes of output (-1: no limit); input that remains is kept for the next call."""


class _Gzip:
    """zlib's decoder with the interface of the others."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(_GZIP_WINDOW)
        self._is_full = False

    @property
    def eof(self) -> bool:
        """As of zlib's decompression objects."""
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        """See _Decoder. zlib does not have this attribute, so it is derived."""
        return not self._is_full and not self._decoder.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        """As of zlib's decompression objects."""
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """See _Decoder. zlib puts remaining input into ``unconsumed_tail``; the next call passes it again."""
        found = self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)
        # There may be more output although all input was consumed.
        self._is_full = len(found) == max_length
        return found


class _WindowError(Exception):
    """A stream refers back further than is read."""


class _Turn(contextlib.AbstractContextManager["_Turn"]):
    """One stream's right to a decoder with a large window; the others wait for it.

    Args:
        check: called while it waits; what it raises ends that.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._is_taken = False

    def take(self) -> None:
        """Wait for the turn, if it isn't this stream's already."""
        while not self._is_taken:
            self._is_taken = _LARGE_WINDOW.acquire(timeout=_TURN_SECONDS)
            if not self._is_taken:
                self._check()

    def give_back(self) -> None:
        """Let another stream have it."""
        if self._is_taken:
            self._is_taken = False
            _LARGE_WINDOW.release()

    def __exit__(self, *_: object) -> None:
        self.give_back()


class _Zstd:
    """zstd's decoder, made when the header of the frame says how large a window it needs.

    Args:
        most: bytes of the window.
    """

    def __init__(self, turn: _Turn, most: int) -> None:
        self._turn = turn
        self._most = most
        self._head = b""
        self._decoder: zstd.ZstdDecompressor | None = None

    @property
    def eof(self) -> bool:
        """See _Decoder."""
        return self._decoder is not None and self._decoder.eof

    @property
    def needs_input(self) -> bool:
        """See _Decoder."""
        return self._decoder is None or self._decoder.needs_input

    @property
    def unused_data(self) -> bytes:
        """See _Decoder. No frame ends within its header, so all of it is of what was passed last."""
        return b"" if self._decoder is None else self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """See _Decoder.

        Raises:
            _WindowError: the window is larger than is read.
        """
        if self._decoder is None:
            data = self._head = self._head + data
            window = _zstd_window(data)
            if window is None:
                return b""
            if window > self._most:
                raise _WindowError(f"of {window} bytes")
            if window > _USUAL_WINDOW_BYTES:
                self._turn.take()
            window_log = max((window - 1).bit_length(), _LEAST_WINDOW_LOG)
            self._decoder = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: window_log})
        found = self._decoder.decompress(data, max_length)
        if self._decoder.eof:
            self._turn.give_back()
        return found


def _zstd_window(head: bytes) -> int | None:
    r"""The window of a zstd frame in bytes (RFC 8878, 3.1.1.1): None while its header isn't whole, 0 for no such frame.

    >>> _zstd_window(b"\x28\xb5\x2f\xfd\0\x88"), _zstd_window(b"\x28\xb5\x2f\xfd\x20\5"), _zstd_window(b"\x28\xb5")
    (134217728, 5, None)
    """
    magic = head[:4]
    if magic != _ZSTD_MAGIC[: len(magic)]:
        return 0
    if len(head) <= _ZSTD_DESCRIPTOR:
        return None
    flags = head[_ZSTD_DESCRIPTOR]
    if flags & _ZSTD_RESERVED:
        return 0
    start = _ZSTD_DESCRIPTOR + 1
    if not flags & _ZSTD_SINGLE_SEGMENT:
        if len(head) <= start:
            return None
        base = 1 << _LEAST_WINDOW_LOG + (head[start] >> 3)
        return base + base // 8 * (head[start] & 7)
    # The whole content is the window; its size comes behind the number of a dictionary.
    start += (0, 1, 2, 4)[flags & 3]
    size = (1, 2, 4, 8)[flags >> 6]
    field = head[start : start + size]
    return int.from_bytes(field, "little") + (256 if size == 2 else 0) if len(field) == size else None


def _decoder_of(kind: str, turn: _Turn, window_bytes: int) -> _Decoder:
    if kind == "gzip":
        return _Gzip()
    if kind == "bzip2":
        return bz2.BZ2Decompressor()
    if kind == "xz":
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
    return _Zstd(turn, window_bytes)


_FAULTS: Final = (zlib.error, lzma.LZMAError, zstd.ZstdError, OSError, EOFError)


def compression_of(head: bytes) -> str:
    """The name of a stream's compression by its first bytes; empty for an uncompressed or unknown one.

    >>> compression_of(b"BZh91AY&SY"), compression_of(b"BZh.txt")
    ('bzip2', '')
    """
    return next((name for name, pattern in _HEADS.items() if pattern.match(head)), "")


def plain(
    pieces: Iterator[bytes],
    *,
    what: str,
    check: Callable[[], None],
    window_bytes: int = MOST_WINDOW_BYTES,
) -> Generator[bytes]:
    """The bytes, decompressed if they are compressed, and then in pieces of at most 1 MiB.

    A window of more than 128 MiB is read by one stream of this process at a time. So whoever doesn't read to the end
    closes the generator: others may wait for its decoder.

    Args:
        check: called often, also while nothing comes out; what it raises ends the work.
        window_bytes: the largest window that is read.

    Raises:
        DocumentError: the compressed data is damaged, cut off or followed by something else, or has a larger window.

    >>> b"".join(plain(iter([b"ab", b"c"]), what="test", check=lambda: None))
    b'abc'
    """
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= HEAD_BYTES:
            break
    kind, chained = compression_of(head), _chained(head, pieces)
    if not kind:
        yield from chained
        return
    with _Turn(check) as turn:
        make = functools.partial(_decoder_of, kind, turn, window_bytes)
        yield from _decoded(chained, make, kind, what, check)


def _decoded(
    pieces: Iterator[bytes], make: Callable[[], _Decoder], kind: str, what: str, check: Callable[[], None]
) -> Generator[bytes]:
    decoder = make()
    has_begun = False
    size = _LEAST_FED
    for piece in pieces:
        start = 0
        while start < len(piece):
            rest = piece[start : start + size]
            start, size = start + len(rest), min(2 * size, _MOST_FED)
            while rest or not (decoder.eof or decoder.needs_input):
                if decoder.eof:
                    rest = rest.lstrip(b"\0") if has_begun else rest  # some tools pad with zeros
                    if not rest:
                        break
                    decoder = make()
                check()
                try:
                    data = decoder.decompress(rest, _PIECE)
                except (_WindowError, *_FAULTS) as error:
                    raise _refusal(error, kind, what) from error
                has_begun = True
                if data:
                    yield data
                rest = decoder.unused_data if decoder.eof else b""
                if rest:
                    size = _LEAST_FED
                if len(rest) > size:  # comes again, in smaller parts
                    start, rest = start - len(rest), b""
    if not decoder.eof:
        raise DocumentError(what, [f"has {kind} data that is cut off"])


def _refusal(error: Exception, kind: str, what: str) -> DocumentError:
    if not isinstance(error, _WindowError) and _XZ_NEEDS_MORE not in str(error):
        return DocumentError(what, [f"has damaged {kind} data: {error}"])
    window = str(error) if isinstance(error, _WindowError) else f"of more than {_USUAL_WINDOW_BYTES} bytes"
    return DocumentError(
        what,
        [f"has {kind} data with a window {window}, which is more than is read here"],
        hint="compress it with a smaller window: zstd --long=27, xz -9",
    )


def _chained(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest
