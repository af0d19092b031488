"""A pipe, or a gzip file, made readable at any place: its plain bytes in a nameless file inside the store.

The size is bounded while it grows, so that a few bytes of gzip can't fill the disk. gzip is RFC 1952; several members
in a row are one file.
"""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
import zlib
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import check_room, translated
from imagestore.errors import DocumentError, InvalidInputError, StoreFullError
from imagestore.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

    from imagestore.cancel import CancelToken

_GZIP: Final = b"\x1f\x8b"
#: What compressed files start with.
COMPRESSIONS: Final = {
    _GZIP: "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
}
_PIECE: Final = 1024 * 1024
_FED: Final = 32 * 1024
_HEAD: Final = 6
_POLL_MILLISECONDS: Final = 500
# zlib's number for "with gzip's header and trailer".
_GZIP_WINDOW: Final = 31


@contextlib.contextmanager
def spool(descriptor: int, *, folder: Path, limit_bytes: int, what: str, cancel: CancelToken) -> Iterator[IO[bytes]]:
    """Copy everything that can be read into a nameless temporary file, without gzip, for a block of work.

    Args:
        descriptor: where to read.
        folder: on whose disk the file is.
        limit_bytes: the most it may hold.
        what: names the archive in errors.
        cancel: ends the copying.

    Raises:
        InvalidInputError: it can't be read, or is compressed in another way.
        DocumentError: the gzip data is damaged or cut off.
        StoreFullError: it is longer than the limit, or the disk is full.
    """
    with contextlib.ExitStack() as stack:
        with translated("write a temporary file", folder):
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))
            for piece in plain(_arriving(descriptor, what, cancel), what=what):
                # A mebibyte of gzip may be a gibibyte.
                cancel.check()
                if file.tell() + len(piece) > limit_bytes:
                    raise StoreFullError(
                        f"{what}: is longer than {limit_bytes} bytes, half of what there is room for at {folder}",
                        hint="free space there, or unpack the archive and import the file",
                    )
                check_room(file.fileno(), len(piece))
                _write(file, piece)
        yield file


def plain(pieces: Iterator[bytes], *, what: str) -> Iterator[bytes]:
    """The bytes without gzip, when they have any.

    Raises:
        InvalidInputError: they are compressed in another way.
        DocumentError: the gzip data is damaged or cut off.

    >>> b"".join(plain(iter([b"ab", b"c"]), what="test"))
    b'abc'
    """
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= _HEAD:
            break
    kind = next((name for magic, name in COMPRESSIONS.items() if head.startswith(magic)), "")
    if kind == "gzip":
        yield from gunzip(_chained(head, pieces), what=what)
    elif kind:
        raise InvalidInputError(f"{what}: is compressed with {kind}", hint=f"decompress it with {kind} first")
    else:
        yield from _chained(head, pieces)


def gunzip(pieces: Iterator[bytes], *, what: str) -> Iterator[bytes]:
    """Decompress, in pieces of at most 1 MiB.

    Raises:
        DocumentError: the data is damaged, cut off, or followed by something else.
    """
    decoder = zlib.decompressobj(_GZIP_WINDOW)
    has_begun = False
    # A decoder copies what is behind a member, and there may be one every twenty bytes.
    for rest in (piece[start : start + _FED] for piece in pieces for start in range(0, len(piece), _FED)):
        while rest:
            if decoder.eof:
                rest = rest.lstrip(b"\0") if has_begun else rest  # some tools pad with zeros
                if not rest:
                    break
                decoder = zlib.decompressobj(_GZIP_WINDOW)
            try:
                data = decoder.decompress(rest, _PIECE)
            except zlib.error as error:
                raise DocumentError(what, [f"has damaged gzip data: {error}"]) from error
            has_begun = True
            if data:
                yield data
            rest = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
    if not decoder.eof:
        raise DocumentError(what, ["has gzip data that is cut off"])


def _write(file: IO[bytes], piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        reach("spool-write")
        rest = rest[file.write(rest) :]


def _chained(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest


def _arriving(descriptor: int, what: str, cancel: CancelToken) -> Iterator[bytes]:
    """What a descriptor gives until its end; waiting for a pipe ends with the token."""
    # Not select(), which takes no descriptor above 1023.
    arrival = select.poll()
    arrival.register(descriptor, select.POLLIN)
    while True:
        cancel.check()
        try:
            if not arrival.poll(_POLL_MILLISECONDS):
                continue
            piece = os.read(descriptor, _PIECE)
        except BlockingIOError:
            continue
        except OSError as error:
            raise InvalidInputError(f"{what}: can't be read: {os.strerror(error.errno or 0)}") from error
        if not piece:
            return
        yield piece
