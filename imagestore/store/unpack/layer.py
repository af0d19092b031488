"""The bytes of a layer without their compression, read once from front to back.

Headers are bounded, so that a few compressed bytes can't become gigabytes in memory. The digest of all bytes is the
layer's diff id.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError
from imagestore.oci.digest import Digest, new_hash
from imagestore.store.unpack.entry import BLOCK
from imagestore.store.unpack.limits import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from typing import Self

    from imagestore.util.cancel import CancelToken

#: A piece has as many bytes at least, but for the last one: handing a small one from thread to thread costs more than
#: what it takes to decompress it.
_PIECE_BYTES: Final = 1024 * 1024
#: Pieces that are decompressed before they are wanted.
_AHEAD: Final = 3


class LayerStream:
    """The bytes of a layer; a context manager.

    Args:
        pieces: the bytes; read in a thread of its own, some pieces ahead.
        algorithm: of the diff id.
        header_bytes: what the headers of one entry may take.
    """

    def __init__(
        self,
        pieces: Iterator[bytes],
        algorithm: str,
        *,
        what: str,
        cancel: CancelToken,
        header_bytes: int = HEADER_BYTES,
    ) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="layer")
        self._pieces = pieces
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="diff-id")
        self._hash = new_hash(algorithm)
        self._hashed: Future[None] | None = None
        self._algorithm = algorithm
        self._what = what
        self._cancel = cancel
        self._piece = b""
        self._used = 0
        #: Bytes of the layer in front of the piece.
        self._before = 0
        self._header_bytes = self._header_bytes_left = header_bytes
        self._next: deque[Future[bytes]] = deque(self._pool.submit(self._receive) for _ in range(_AHEAD))

    def _receive(self) -> bytes:
        """The next piece, decompressed while others are hashed and unpacked; empty at the end."""
        found = bytearray()
        joined = b""
        for piece in self._pieces:
            if not found and len(piece) >= _PIECE_BYTES:
                joined = piece
                break
            # Pieces may be of one byte each, and as objects take forty times as much.
            found += piece
            if len(found) >= _PIECE_BYTES:
                break
        joined = joined or bytes(found)
        if joined:
            if self._hashed is not None:
                self._hashed.result()  # so that no more than one waits
            self._hashed = self._hashing.submit(self._hash.update, joined)
        return joined

    def check(self) -> None:
        """Raise if the unpacking is cancelled."""
        self._cancel.check()

    def _advance(self) -> bool:
        """Go on to the next piece; False at the end."""
        self._cancel.check()
        piece = self._next.popleft().result()
        self._next.append(self._pool.submit(self._receive))
        if not piece:
            return False
        self._before += len(self._piece)
        self._piece, self._used = piece, 0
        return True

    def first_block(self) -> bytes:
        """The first block of one more entry's headers; fewer bytes at the end."""
        self._header_bytes_left = self._header_bytes
        end = self._used + BLOCK
        if end > len(self._piece):
            return self.read(BLOCK)
        found = self._piece[self._used : end]
        self._used = end
        return found

    def read(self, size: int) -> bytes:
        """Bytes of a header, or of data that extends one; fewer at the end.

        Raises:
            DocumentError: the headers of this entry take too much.
        """
        self._header_bytes_left -= size
        if self._header_bytes_left < 0:
            raise DocumentError(self._what, [f"has an entry whose headers take more than {self._header_bytes} bytes"])
        end = self._used + size
        found = self._piece[self._used : end]
        if len(found) == size:
            self._used = end
            return found
        self._used = len(self._piece)
        while len(found) < size and self._advance():
            found += self.some(size - len(found))
        return found

    def some(self, size: int) -> bytes:
        """At least one and at most ``size`` of the next bytes of an entry's data.

        Raises:
            DocumentError: the layer ends before.
        """
        if self._used == len(self._piece) and not self._advance():
            raise DocumentError(self._what, ["is cut off inside an entry's data"])
        found = self._piece[self._used : self._used + size]
        self._used += len(found)
        return found

    def copy_to(self, descriptor: int, size: int) -> None:
        """Write the next ``size`` bytes of an entry's data to an open file."""
        while size:
            data = self.some(size)
            size -= len(data)
            done = os.write(descriptor, data)
            while done < len(data):
                done += os.write(descriptor, memoryview(data)[done:])

    def tell(self) -> int:
        """Bytes from the beginning."""
        return self._before + self._used

    def skip_to(self, end: int) -> None:
        """Skip forward, at most to the end."""
        while end - self._before > len(self._piece):
            self._used = len(self._piece)
            if not self._advance():
                return
        self._used = max(self._used, end - self._before)

    def finish(self) -> Digest:
        """Read what is left, and return the digest of all bytes."""
        while self._advance():
            pass
        if self._hashed is not None:
            self._hashed.result()
        return Digest(self._algorithm, self._hash.hexdigest())

    def close(self) -> None:
        """Wait for the piece that is being read, and end the threads."""
        self._pool.shutdown(cancel_futures=True)
        self._hashing.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
