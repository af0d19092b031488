"""A pipe, or a compressed file, made readable at any place: its plain bytes in a nameless file inside the store.

The file grows only as far as the reader of the archive's headers needs: what is no archive ends at its first block, and
what follows the archive's end is read, but not kept. Its size is bounded, and zeros become holes, so that a few
compressed bytes can't fill the disk.
"""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError, InvalidInputError, StoreFullError
from imagestore.store.archive.compressions import plain
from imagestore.util.disk_errors import translated
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

    from imagestore.util.cancel import CancelToken

_PIECE: Final = 1024 * 1024
_POLL_MILLISECONDS: Final = 500
#: Bytes behind the end of an archive; tar programs pad with up to a few MiB.
_MOST_BEHIND_END: Final = 64 * 1024 * 1024


class Spool:
    """Bytes that come one after the other, readable at any place.

    Args:
        folder: where the file is, for errors.
        limit_bytes: the most that the file may hold.
    """

    def __init__(
        self, pieces: Iterator[bytes], file: IO[bytes], folder: Path, limit_bytes: int, what: str, cancel: CancelToken
    ) -> None:
        self._pieces = pieces
        self._file = file
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._what = what
        self._cancel = cancel
        self._length = 0
        self._is_ended = False

    def read(self, offset: int, size: int) -> bytes:
        """So many bytes at an offset; fewer at the end.

        Raises:
            InvalidInputError: the source can't be read.
            DocumentError: the compressed data is damaged or cut off.
            StoreFullError: it is longer than the limit, or the disk is full.
        """
        while self._length < offset + size and not self._is_ended:
            # What a header promises is refused before a byte of it is written.
            self._check_limit(offset + size)
            # A mebibyte of compressed bytes may be a gibibyte.
            self._cancel.check()
            piece = next(self._pieces, None)
            if piece is None:
                self._is_ended = True
            else:
                self._keep(piece)
        return os.pread(self._file.fileno(), size, offset)

    def drain(self) -> None:
        """Read what follows the archive's end, and keep nothing of it: a stream that is cut off is refused.

        Raises:
            as read(); DocumentError also where the end is far.
        """
        left = _MOST_BEHIND_END
        for piece in self._pieces:
            self._cancel.check()
            left -= len(piece)
            if left < 0:
                raise DocumentError(self._what, [f"goes on for more than {_MOST_BEHIND_END} bytes behind its end"])
        self._is_ended = True

    def _keep(self, piece: bytes) -> None:
        self._check_limit(self._length + len(piece))
        with translated("write a temporary file", self._folder):
            if piece.count(0) == len(piece):
                self._file.truncate(self._length + len(piece))
                self._file.seek(len(piece), os.SEEK_CUR)
            else:
                rest = memoryview(piece)
                while rest:
                    reach("spool-write")
                    rest = rest[self._file.write(rest) :]
        self._length += len(piece)

    def _check_limit(self, needed_bytes: int) -> None:
        if needed_bytes > self._limit_bytes:
            limit = f"{self._limit_bytes} bytes, half of what there is room for at {self._folder}"
            raise StoreFullError(
                f"{self._what}: is longer than {limit}",
                hint="free space there, or unpack the archive and import the file",
            )


@contextlib.contextmanager
def spool(descriptor: int, *, folder: Path, limit_bytes: int, what: str, cancel: CancelToken) -> Iterator[Spool]:
    """What a descriptor gives, without compression, for a block of work.

    Args:
        folder: on whose disk the nameless temporary file is.
        limit_bytes: the most it may hold.
    """
    with contextlib.ExitStack() as stack:
        with translated("write a temporary file", folder):
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))
        pieces = stack.enter_context(
            contextlib.closing(plain(_arriving(descriptor, what, cancel), what=what, check=cancel.check))
        )
        yield Spool(pieces, file, folder, limit_bytes, what, cancel)


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
