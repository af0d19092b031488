"""Where an image is read from: a registry, a layout, an archive or the store.

Each is an Origin (``pull.sources``), so copies, exports and searches for referrers read all of them in one way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.oci.decode import limit_of
from imagestore.oci.digest import Verifier
from imagestore.oci.media_types import Kind
from imagestore.store.archive.contents import NAMELESS, PieceTransfer
from imagestore.store.archive.layout_referrers import LayoutReferrers
from imagestore.store.pull.sources import Documents

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Sequence

    from imagestore.content.api import ContentStore
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.registry.blobs import Transfer
    from imagestore.registry.client import RegistryClient
    from imagestore.store.archive.contents import ArchiveContents
    from imagestore.store.pull.sources import Origin
    from imagestore.util.cancel import CancelToken

    #: Lists what refers to a document.
    ReferrerList = Callable[[Digest], Sequence[Descriptor]]

_PIECE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where an image is read from.

    Attributes:
        reference: names it there.
        documents: read from the origin, each once.
        referrers: lists what refers to a document; None for a docker-archive, which can't have any.
        is_registry: whether other repositories of its host can mount its blobs.
    """

    reference: Reference
    origin: Origin
    documents: Documents
    referrers: ReferrerList | None = None
    is_registry: bool = False

    def open(self, descriptor: Descriptor, offset: int, *, cancel: CancelToken) -> Transfer:
        """A blob's bytes from an offset on, or from its beginning; the caller verifies them."""
        return self.origin.blob(self.reference, descriptor, offset=offset, avoid=(), cancel=cancel)

    def pieces(self, descriptor: Descriptor, *, cancel: CancelToken) -> Generator[bytes]:
        """A blob's or a document's bytes in pieces of at most 1 MiB.

        Raises:
            RegistryError, ContentNotFoundError: they can't be had.
            IntegrityError: at the end, if they aren't what the descriptor says.
        """
        if descriptor.kind in {Kind.INDEX, Kind.MANIFEST}:
            yield self.documents.raw(descriptor)
            return
        verifier = Verifier(descriptor.digest, descriptor.size, what=f"{descriptor.kind.value} {descriptor.digest}")
        with self.open(descriptor, 0, cancel=cancel) as transfer:
            for piece in _pieces(transfer):
                verifier.update(piece)
                yield piece
        verifier.finish()


def _pieces(transfer: Transfer) -> Iterator[bytes]:
    if isinstance(transfer, PieceTransfer):
        yield from transfer.pieces  # needn't be copied
        return
    buffer = memoryview(bytearray(_PIECE_BYTES))
    while count := transfer.readinto(buffer):
        yield bytes(buffer[:count])


def in_registry(
    client: RegistryClient, reference: Reference, cancel: CancelToken, *, content: ContentStore | None = None
) -> ImageSource:
    """A repository of a registry; documents that ``content`` has aren't fetched."""
    documents = Documents(content, client, reference, cancel)
    return ImageSource(
        reference,
        client,
        documents,
        lambda subject: client.referrers(reference, subject, cancel=cancel).entries,
        is_registry=True,
    )


def in_archive(
    contents: ArchiveContents, reference: Reference, cancel: CancelToken, *, content: ContentStore | None = None
) -> ImageSource:
    """An archive or a layout; documents that ``content`` has are read there."""
    documents = Documents(content, contents.origin, reference, cancel)
    referrers = None if contents.listed is None else LayoutReferrers(contents.listed, documents)
    return ImageSource(reference, contents.origin, documents, referrers)


def in_store(
    content: ContentStore,
    cancel: CancelToken,
    *,
    reference: Reference = NAMELESS,
    referrers: ReferrerList | None = None,
) -> ImageSource:
    """The store itself."""
    return ImageSource(reference, StoreOrigin(content), Documents(content, None, None, cancel), referrers)


@dataclass(frozen=True, slots=True)
class StoreOrigin:
    """The store's content as an Origin, as a registry or an archive is."""

    content: ContentStore

    def document(self, reference: Reference, descriptor: Descriptor, *, cancel: CancelToken) -> bytes:
        """See Origin."""
        return self.content.read(descriptor.digest, limit_bytes=limit_of(descriptor.kind))

    def blob(
        self, reference: Reference, descriptor: Descriptor, *, offset: int, avoid: Collection[str], cancel: CancelToken
    ) -> Transfer:
        """See Origin."""
        return PieceTransfer(self._pieces(descriptor.digest, offset), offset)

    def _pieces(self, digest: Digest, offset: int) -> Generator[bytes]:
        with self.content.open(digest) as file:
            file.seek(offset)
            while piece := file.read(_PIECE_BYTES):
                yield piece
