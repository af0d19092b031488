"""A layer as a sequence of tar entries (OCI image-spec 1.1, layer.md), read once from front to back.

``tarfile`` reads the headers. It gets a stream that bounds what headers may take, so that a few compressed bytes can't
become gigabytes in memory, and that hashes what goes by: the digest of the whole is the layer's diff id.
"""

from __future__ import annotations

import tarfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, cast

from imagestore.errors import DocumentError
from imagestore.oci.digest import Digest, new_hash
from imagestore.store.unpack.judge import judge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO, Self

    from imagestore.util.cancel import CancelToken

#: What the headers of one entry may take: names, links, extended attributes, maps of sparse files.
MAX_HEADER_BYTES: Final = 4 * 1024 * 1024
_BLOCK: Final = 512


class LayerStream:
    """The bytes of a layer without their compression, as the forward-only file that ``tarfile`` reads.

    Args:
        pieces: the bytes.
        algorithm: of the diff id.
        what: names the layer in errors.
        cancel: ends the reading.
    """

    def __init__(self, pieces: Iterator[bytes], algorithm: str, *, what: str, cancel: CancelToken) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="layer")
        self._pieces = pieces
        self._hash = new_hash(algorithm)
        self._algorithm = algorithm
        self._what = what
        self._cancel = cancel
        self._piece = b""
        self._used = 0
        self._position = 0
        self._header_bytes_left = MAX_HEADER_BYTES
        #: What the last read() returned, to tell the end of an archive from a damaged header.
        self.last = b""
        self._next = self._pool.submit(self._receive)

    def _receive(self) -> bytes:
        """The next piece, decompressed and hashed while the one before it is unpacked; empty at the end."""
        piece = next(self._pieces, b"")
        self._hash.update(piece)
        return piece

    def _advance(self) -> bool:
        """Go on to the next piece; False at the end."""
        self._cancel.check()
        piece = self._next.result()
        if not piece:
            return False
        self._next = self._pool.submit(self._receive)
        self._piece, self._used = piece, 0
        return True

    def begin_entry(self) -> None:
        """The headers of one more entry come."""
        self._header_bytes_left = MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        """So many bytes of a header, or of the data that stands for one; fewer at the end.

        Raises:
            DocumentError: the headers of this entry take too much.
        """
        self._header_bytes_left -= size
        if self._header_bytes_left < 0:
            raise DocumentError(self._what, [f"has an entry whose headers take more than {MAX_HEADER_BYTES} bytes"])
        found = self._take(size)
        while len(found) < size and self._advance():
            found += self._take(size - len(found))
        self.last = found
        return found

    def _take(self, size: int) -> bytes:
        found = self._piece[self._used : self._used + size]
        self._used += len(found)
        self._position += len(found)
        return found

    def chunks(self, size: int) -> Iterator[bytes]:
        """The next bytes, an entry's data, in pieces.

        Raises:
            DocumentError: the layer ends before.
        """
        while size:
            found = self._take(size)
            if found:
                size -= len(found)
                yield found
            elif not self._advance():
                raise DocumentError(self._what, ["is cut off inside an entry's data"])

    def tell(self) -> int:
        """Bytes from the beginning."""
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        """Skip forward; at the end as far as there is something."""
        if whence or offset < self._position:
            raise DocumentError(self._what, ["has headers that lead backwards"])
        while self._position < offset and (self._take(offset - self._position) or self._advance()):
            pass
        return self._position

    def finish(self) -> Digest:
        """Read what is left, and return the digest of all bytes."""
        while self._take(len(self._piece)) or self._advance():
            pass
        return Digest(self._algorithm, self._hash.hexdigest())

    def close(self) -> None:
        """Wait for the piece that is being read, and give everything back."""
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Ignored(dict[str, str]):
    """Keeps nothing that is set in it."""

    def __setitem__(self, key: str, value: str) -> None:
        """Nothing."""


def entries(stream: LayerStream, *, what: str) -> Iterator[tarfile.TarInfo]:
    """The entries of a layer; each one's data, if wanted, is read from the stream before the next entry is asked for.

    Raises:
        DocumentError: a header is damaged or takes too much, or an entry can't be (see ``judge``).
    """
    try:
        archive = tarfile.open(  # noqa: SIM115 - holds nothing: the stream is the caller's
            fileobj=cast("BinaryIO", stream),  # forward only, which is all that reading needs
            mode="r:",
            encoding="utf-8",
            errors="surrogateescape",
            # Records for all entries that follow: containerd and Docker have none of them count.
            pax_headers=_Ignored(),
        )
        entry = archive.next()
        while entry is not None:
            judge(entry, archive.offset - entry.offset_data, what=what)
            yield entry
            stream.seek(archive.offset)
            stream.begin_entry()
            # Not next(), which keeps every entry of the layer in memory, and takes a damaged header for the end.
            entry = tarfile.TarInfo.fromtarfile(archive)
    except tarfile.HeaderError as error:
        _refuse_damage(stream, error, what)
    except tarfile.ReadError as error:
        if stream.tell():
            _refuse_damage(stream, error, what)
    except (ValueError, OverflowError, UnicodeError, RecursionError) as error:
        raise DocumentError(what, [f"is no readable tar archive: {error}"]) from error


def _refuse_damage(stream: LayerStream, error: tarfile.TarError, what: str) -> None:
    """An archive ends with two blocks of zeros, or where the bytes end; anything else that is no header is damage."""
    if stream.last.strip(b"\0") or (stream.last and stream.read(_BLOCK).strip(b"\0")):
        raise DocumentError(what, [f"has a damaged tar header before byte {stream.tell()}: {error}"]) from error
