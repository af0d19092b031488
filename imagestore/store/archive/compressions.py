"""Compressed streams of archives and layers: recognized by their first bytes, decompressed in pieces.

Formats are those that skopeo and podman read: gzip (RFC 1952), bzip2, xz, zstd (RFC 8878). Several members or frames
in a row are one stream. Each output piece is bounded, so that a few bytes can't become gigabytes in memory.
"""

from __future__ import annotations

import bz2
import lzma
import re
import sys
import zlib
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import DocumentError
from imagestore.util.cancel import never_cancelled

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
#: Formats that are not read, by their first bytes.
_OTHER_HEADS: Final = {
    "a zip file": re.compile(rb"PK(?:\x03\x04|\x05\x06)"),
    "a 7z file": re.compile(rb"7z\xbc\xaf\x27\x1c"),
    "compressed with lz4, which isn't read": re.compile(rb"\x04\x22\x4d\x18"),
    "compressed with lzip, which isn't read": re.compile(rb"LZIP"),
    "compressed with compress, which isn't read": re.compile(rb"\x1f[\x9d\xa0]"),
    "compressed with lzma, which isn't read": re.compile(rb"\x5d\x00\x00[\x00-\xff]{2}"),
    "a squashfs file system": re.compile(rb"hsqs"),
    "a Singularity image": re.compile(rb"#!/usr/bin/env "),
    "a disk image of QEMU": re.compile(rb"QFI\xfb"),
    "a cpio archive": re.compile(rb"07070[0127]"),
    "an rpm package": re.compile(rb"\xed\xab\xee\xdb"),
    "an ar archive": re.compile(rb"!<arch>\n"),
    "JSON and no archive; 'imagestore match --index' reads an index": re.compile(rb"\s*[\[{]\s*[\]}\"{\[]"),
}
_PIECE: Final = 1024 * 1024
#: Compressed bytes per call of a decoder. It copies the input after a member's end, and there may be an end every 20
#: bytes: so few bytes at first and after an end, then more, since each call releases and takes Python's lock (GIL).
_LEAST_FED: Final = 32 * 1024
_MOST_FED: Final = 1024 * 1024
# A stream states how far back it refers, and so the memory that its reader needs: at most 128 MiB for both, as much as
# any usual compression level has (xz -9: 64 MiB, zstd --long: 128 MiB). xz needs some more for itself.
_XZ_MEMORY_BYTES: Final = (128 + 1) * 1024 * 1024
_ZSTD_WINDOW_LOG: Final = 27
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


_DECODERS: Final[dict[str, Callable[[], _Decoder]]] = {
    "gzip": _Gzip,
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES),
    "zstd": lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}),
}
_FAULTS: Final = (zlib.error, lzma.LZMAError, zstd.ZstdError, OSError, EOFError)


def compression_of(head: bytes) -> str:
    """The name of a stream's compression by its first bytes; empty for an uncompressed or unknown one.

    >>> compression_of(b"BZh91AY&SY"), compression_of(b"BZh.txt")
    ('bzip2', '')
    """
    return next((name for name, pattern in _HEADS.items() if pattern.match(head)), "")


def unreadable_format(head: bytes) -> str:
    """The name of a format that is not read, by the first bytes of the file; empty for any other.

    >>> unreadable_format(b"PK\\x03\\x04")
    'a zip file'
    """
    return next((name for name, pattern in _OTHER_HEADS.items() if pattern.match(head)), "")


def plain(pieces: Iterator[bytes], *, what: str, check: Callable[[], None] = never_cancelled) -> Iterator[bytes]:
    """The bytes, decompressed if they are compressed.

    Args:
        check: called often, also while nothing comes out; what it raises ends the work.

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
    yield from decompressed(chained, kind, what=what, check=check) if kind else chained


def decompressed(
    pieces: Iterator[bytes], kind: str, *, what: str, check: Callable[[], None] = never_cancelled
) -> Iterator[bytes]:
    """Decompress, in pieces of at most 1 MiB.

    Args:
        kind: see compression_of().
        check: see plain().

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
                check()
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
