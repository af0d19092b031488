"""Compressed streams of archives and layers: told by their first bytes, unpacked piece by piece.

Forms are those that skopeo and podman read: gzip (RFC 1952), bzip2, xz, zstd (RFC 8878). Several members or frames in a
row are one stream. Each piece that comes out is bounded, so that a few bytes can't become gigabytes in memory.
"""

from __future__ import annotations

import bz2
import lzma
import re
import sys
import zlib
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import DocumentError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: As many bytes say how a stream is compressed.
HEAD_BYTES: Final = 16
# bzip2: the magic number of a block, or of an empty stream's end, too, since names of files may begin with "BZh".
# zstd: a frame, or one to be skipped, as parallel writers put it first.
_HEADS: Final = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bzip2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
}
_PIECE: Final = 1024 * 1024
# Compressed bytes that a decoder gets at a time. It copies what is behind a member, and there may be one every twenty
# bytes: so few at first and after the end of a member, then more, since threads change turns with each call.
_LEAST_FED: Final = 32 * 1024
_MOST_FED: Final = 1024 * 1024
# A stream names the memory that its reader needs: more than any usual level of compression takes.
_XZ_MEMORY_BYTES: Final = 256 * 1024 * 1024
_ZSTD_WINDOW_LOG: Final = 27
# zlib's number for "with gzip's header and trailer".
_GZIP_WINDOW: Final = 31


class _Decoder(Protocol):
    """What the decoders of bz2, lzma and zstd have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """zlib's decoder, asked as the others are."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(_GZIP_WINDOW)
        self._is_full = False

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        return not self._is_full and not self._decoder.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        found = self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)
        # There may be more, though all input was taken.
        self._is_full = len(found) == max_length
        return found


_DECODERS: Final[dict[str, Callable[[], _Decoder]]] = {
    "gzip": _Gzip,
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES),
    "zstd": lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}),
}
_FAULTS: Final = (zlib.error, lzma.LZMAError, zstd.ZstdError, OSError, EOFError)


def compression_of(head: bytes) -> str:
    """The name of a stream's compression by its first bytes; empty when it has none that is known.

    >>> compression_of(b"BZh91AY&SY"), compression_of(b"BZh.txt")
    ('bzip2', '')
    """
    return next((name for name, pattern in _HEADS.items() if pattern.match(head)), "")


def plain(pieces: Iterator[bytes], *, what: str) -> Iterator[bytes]:
    """The bytes without their compression, when they have one.

    Raises:
        DocumentError: the compressed data is damaged, cut off or followed by something else.

    >>> b"".join(plain(iter([b"ab", b"c"]), what="test"))
    b'abc'
    """
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= HEAD_BYTES:
            break
    kind = compression_of(head)
    chained = _chained(head, pieces)
    yield from decompressed(chained, kind, what=what) if kind else chained


def decompressed(pieces: Iterator[bytes], kind: str, *, what: str) -> Iterator[bytes]:
    """Decompress, in pieces of at most 1 MiB.

    Args:
        pieces: the compressed bytes.
        kind: see compression_of().
        what: names the stream in errors.

    Raises:
        DocumentError: the data is damaged, cut off, or followed by something else.
    """
    make = _DECODERS[kind]
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
                try:
                    data = decoder.decompress(rest, _PIECE)
                except _FAULTS as error:
                    raise DocumentError(what, [f"has damaged {kind} data: {error}"]) from error
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


def _chained(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest
