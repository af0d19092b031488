"""Content codings that the client did not ask for.

The client asks for content as it is stored. Some servers compress it all the same, and a cache that ignores ``Vary``
may answer with what another client asked for. Other registry clients accept that, so gzip is undone here, within the
size that the descriptor (or the kind of document) allows. The digest decides: content that is *stored* compressed may
be marked in the same way, and then isn't decompressed.
"""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError, IntegrityError
from imagestore.oci.media_types import Kind
from imagestore.registry.transport.urls import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.oci.descriptor import Descriptor
    from imagestore.registry.transport.messages import Response

_GZIP: Final = frozenset({"gzip", "x-gzip"})
_MAGIC: Final = b"\x1f\x8b"
_PIECE_BYTES: Final = 64 * 1024
# Each member that ends copies the rest of a step, and a hostile body has as many as it likes: steps are small.
_STEP_BYTES: Final = 4 * 1024
# Of zlib: a gzip header is expected.
_WINDOW_BITS: Final = 31
# So many bytes show whether something is gzip, and what is in it: a header with a file name is shorter.
_TELLING_BYTES: Final = 1024


def coding(response: Response) -> str:
    """The content coding that an answer names; empty for none."""
    named = response.headers.get("Content-Encoding", "").strip().lower()
    return "" if named == "identity" else escape(named[:100])


def is_gzip(response: Response) -> bool:
    """Whether an answer says that its body was compressed by gzip, the one coding that is undone."""
    return coding(response) in _GZIP


@contextmanager
def coding_as_hint(response: Response) -> Iterator[None]:
    """If bytes turn out wrong in this block, the error's hint names the coding that the answer was marked with."""
    try:
        yield
    except (IntegrityError, DocumentError) as error:
        error.hint = coding_hint(response) or error.hint
        raise


def coding_hint(response: Response) -> str:
    """What to do about a wrong body; empty if the answer names no coding."""
    named = coding(response)
    if not named:
        return ""
    marked = f"the answer is marked Content-Encoding: {named}"
    return f"{marked}: what stands before the registry must leave content as it is stored"


def read_decoded(response: Response, limit_bytes: int) -> bytes:
    """An answer's whole body without a gzip coding."""
    return decoded(response, response.read(limit_bytes), limit_bytes)


def decoded(response: Response, body: bytes, limit_bytes: int) -> bytes:
    """A body without its gzip coding; as it is if it has none, or if more than the limit comes out of it."""
    if not is_gzip(response) or not body.startswith(_MAGIC):
        return body
    members, unpacked = _Gunzip(body), bytearray()
    try:
        while len(unpacked) <= limit_bytes and (piece := members.unpack(limit_bytes + 1 - len(unpacked))):
            unpacked += piece
    except zlib.error:
        return body
    return bytes(unpacked) if members.is_whole and len(unpacked) <= limit_bytes else body


class GunzippedBody:
    """A blob's body without the gzip coding that a server or proxy added, if one did.

    With ``is_coded`` one certainly did, since the answer's length isn't the blob's. Without a length the first bytes
    decide: a blob that is stored compressed must have been compressed twice. Not much more than the blob's size is read
    of compressed bytes either. The response is closed with this.
    """

    def __init__(self, response: Response, descriptor: Descriptor, *, is_coded: bool) -> None:
        self._response = response
        self._descriptor = descriptor
        self._is_coded = is_coded
        self._members: _Gunzip | None = None
        # Compressing what can't be compressed adds a few bytes to each block.
        self._allowed = descriptor.size + descriptor.size // 8 + _PIECE_BYTES
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        # Not handed out or unpacked yet.
        self._received = b""
        self._has_begun = False

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer; 0 at the end of the answer.

        Raises:
            IntegrityError: the body isn't gzip, or longer than it may be.
            RegistryError: reading the answer failed.
        """
        if not self._has_begun:
            self._begin()
            self._has_begun = True
        if self._members is not None:
            return self._unpack_into(buffer, self._members)
        if not self._received:
            return self._response.readinto(buffer)
        count = min(len(buffer), len(self._received))
        buffer[:count] = self._received[:count]
        self._received = self._received[count:]
        return count

    def close(self) -> None:
        """Close the answer."""
        self._response.close()

    def _begin(self) -> None:
        while len(self._received) < _TELLING_BYTES and (piece := self._receive()):
            self._received += piece
        if not self._is_coded:
            inside = _beginning(self._received)
            # Content of unknown kinds may be stored compressed.
            may_be_stored_so = self._descriptor.media_type.endswith("gzip") or self._descriptor.kind is Kind.OTHER
            is_stored_so = may_be_stored_so and not inside.startswith(_MAGIC)
            self._is_coded = bool(inside) and not is_stored_so
        if self._is_coded:
            self._members = _Gunzip(self._received)

    def _unpack_into(self, buffer: memoryview, members: _Gunzip) -> int:
        while True:
            try:
                unpacked = members.unpack(len(buffer))
            except zlib.error as error:
                raise self._no_gzip() from error
            if unpacked:
                buffer[: len(unpacked)] = unpacked
                return len(unpacked)
            if members.is_over or not (received := self._receive()):
                return 0
            members.feed(received)

    def _receive(self) -> bytes:
        count = self._response.readinto(self._piece)
        self._allowed -= count
        if self._allowed < 0:
            raise self._no_gzip()
        return bytes(self._piece[:count])

    def _no_gzip(self) -> IntegrityError:
        what = f"blob {self._descriptor.digest} from {self._response.host}"
        return IntegrityError(f"{what}: can't be unpacked", hint=coding_hint(self._response))


class _Gunzip:
    """Unpacks gzip, one member or several in a row (RFC 1952 section 2.2); what follows them is ignored."""

    def __init__(self, packed: bytes) -> None:
        self._packed = memoryview(packed)
        self._unpacker = _unpacker()
        #: Whether something else follows the last member.
        self.is_over = False

    @property
    def is_whole(self) -> bool:
        """Whether the last member has ended."""
        return self._unpacker.eof

    def feed(self, packed: bytes) -> None:
        """Add bytes, after unpack() returned none."""
        self._packed = memoryview(bytes(self._packed) + packed)

    def unpack(self, most: int) -> bytes:
        """The next bytes, at most so many (1 or more); none if more must be fed. Raises zlib.error if it isn't gzip."""
        while not self.is_over:
            if self._unpacker.eof:
                if len(self._packed) < len(_MAGIC):
                    break
                if bytes(self._packed[: len(_MAGIC)]) != _MAGIC:
                    self.is_over = True
                    break
                self._unpacker = _unpacker()
            step = self._packed[:_STEP_BYTES]
            # Without a step too: output may be left in the unpacker.
            unpacked = self._unpacker.decompress(step, most)
            rest = self._unpacker.unused_data if self._unpacker.eof else self._unpacker.unconsumed_tail
            self._packed = self._packed[len(step) - len(rest) :]
            if unpacked or not step:
                return unpacked
        return b""


def _beginning(packed: bytes) -> bytes:
    """The first unpacked bytes; none if it isn't gzip."""
    try:
        return _Gunzip(packed).unpack(len(_MAGIC))
    except zlib.error:
        return b""


def _unpacker() -> zlib._Decompress:
    return zlib.decompressobj(_WINDOW_BITS)
