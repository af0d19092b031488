"""What an archive holds: images by name, and the bytes behind their digests."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import ContentNotFoundError, DocumentError, SizeMismatchError
from imagestore.oci import layout
from imagestore.oci.decode import limit_of
from imagestore.oci.digest import verify
from imagestore.oci.media_types import Kind
from imagestore.oci.reference import Reference
from imagestore.platforms import format_all
from imagestore.store.archive import foreign_layers
from imagestore.store.archive.compressions import plain
from imagestore.store.archive.source import first_in, read, size_of
from imagestore.util.files import StreamReader
from imagestore.util.text import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.archive.source import Source
    from imagestore.util.cancel import CancelToken

#: Characters of a label in messages.
_MAX_SHOWN: Final = 200
#: For images of archives that say no name; it appears in messages only.
NAMELESS: Final = Reference.parse("archive.invalid/image")
_INCOMPLETE: Final = "the archive is incomplete, or was exported for other platforms"


class ArchiveFormat(enum.Enum):
    """Forms of archives; the values are the names of skopeo's transports."""

    OCI_ARCHIVE = "oci-archive"
    OCI_FOLDER = "oci"
    DOCKER_ARCHIVE = "docker-archive"


@dataclass(frozen=True, slots=True)
class ArchiveImage:
    """An image in an archive.

    Attributes:
        name: its full reference; None when the archive doesn't say one.
        label: what the archive says instead, for example only a tag; may be empty.
        entries: what the name leads to: usually one index or manifest; several are alternatives, as in an index.
    """

    name: Reference | None
    label: str
    entries: tuple[Descriptor, ...]

    def __str__(self) -> str:
        return str(self.name or cut(self.label, _MAX_SHOWN) or "an image without a name")


@dataclass(frozen=True, slots=True)
class ArchiveOrigin:
    """Documents and blobs of an archive: the Origin of an import, as a registry is of a pull.

    Attributes:
        places: file name by digest.
        made: documents that the archive's format implies, by digest.
        packed: digests of blobs whose files are compressed; their sizes were judged before.
    """

    source: Source
    places: Mapping[Digest, str]
    made: Mapping[Digest, bytes] = field(default_factory=dict, hash=False)
    packed: Collection[Digest] = field(default=(), hash=False)

    def has(self, digest: Digest) -> bool:
        """Whether there is content that claims this digest."""
        return digest in self.places or digest in self.made

    def document(self, reference: Reference, descriptor: Descriptor, *, cancel: CancelToken) -> bytes:
        """An index, a manifest or a config whole, verified against size and digest.

        Raises:
            DocumentError: it is too long for a document.
        """
        cancel.check()
        raw = self.made.get(descriptor.digest)
        if raw is None:
            raw = read(self.source, self._place(descriptor), limit_bytes=limit_of(descriptor.kind))
        verify(raw, descriptor.digest, descriptor.size, what=self._what(descriptor))
        return raw

    def blob(
        self,
        reference: Reference,
        descriptor: Descriptor,
        *,
        offset: int,
        avoid: Collection[str],
        cancel: CancelToken,
    ) -> PieceTransfer:
        """A blob from ``offset`` on."""
        self.check(descriptor)
        place = self._place(descriptor)
        if descriptor.digest not in self.packed:
            return PieceTransfer(self.source.chunks(place, offset), offset)
        # What isn't kept as it is can only be read from its start.
        what = self._what(descriptor)
        return PieceTransfer(plain(self.source.chunks(place), what=what, check=cancel.check), 0)

    def check(self, descriptor: Descriptor) -> None:
        """Check what can be checked without reading: that a blob is there and has the promised size.

        Raises:
            ContentNotFoundError, SizeMismatchError: it isn't, or it hasn't.
            DocumentError: a foreign layer hasn't; the archive's writer left it out.
        """
        actual = size_of(self.source, self._place(descriptor))
        if descriptor.digest in self.packed:
            return
        if actual != descriptor.size and descriptor.kind is Kind.FOREIGN_LAYER:
            raise DocumentError(self._what(descriptor), [foreign_layers.left_out(descriptor)], hint=foreign_layers.HINT)
        if actual != descriptor.size:
            raise SizeMismatchError(self._what(descriptor), expected=descriptor.size, actual=actual)

    def _place(self, descriptor: Descriptor) -> str:
        place = self.places.get(descriptor.digest)
        if place is None:
            name = layout.blob_name(descriptor.digest)
            if first_in(self.source.links, name) or first_in(self.source.others, name):
                size_of(self.source, name)
            if descriptor.kind is Kind.FOREIGN_LAYER:
                said = f"{self._what(descriptor)}: {foreign_layers.left_out(descriptor)}"
                raise ContentNotFoundError(said, hint=foreign_layers.HINT)
            raise ContentNotFoundError(f"{self._what(descriptor)}: is needed, but missing", hint=_INCOMPLETE)
        return place

    def _what(self, descriptor: Descriptor) -> str:
        platform = "" if descriptor.platform is None else f" for {format_all(descriptor.platform)}"
        return f"{self.source.what}: {descriptor.kind.value} {descriptor.digest}{platform}"


class PieceTransfer(StreamReader):
    """The bytes of a blob from ``start`` on, which come in pieces."""

    def __init__(self, pieces: Iterator[bytes], start: int) -> None:
        super().__init__(pieces)
        self.start = start
        self.hosts: Collection[str] = ()
        self.pieces = pieces

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self.pieces, "close"):
            self.pieces.close()


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """An archive that was looked into.

    Attributes:
        notes: what was left out, for people.
        listed: the entries of a layout's ``index.json``, referrers included; None for a docker-archive.
    """

    images: tuple[ArchiveImage, ...]
    origin: ArchiveOrigin
    notes: tuple[str, ...] = ()
    listed: tuple[Descriptor, ...] | None = None


def grouped(entries: Iterable[tuple[Reference | None, str, Descriptor]]) -> tuple[ArchiveImage, ...]:
    """One image for each name, with every entry that the name has; each digest once."""
    found: dict[tuple[Reference | None, str], dict[Digest, Descriptor]] = {}
    for name, label, entry in entries:
        found.setdefault((name, label), {}).setdefault(entry.digest, entry)
    return tuple(ArchiveImage(name, label, tuple(each.values())) for (name, label), each in found.items())
