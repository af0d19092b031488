"""The image that is copied: which manifests of it, and where its bytes come from.

From a registry or an archive the handlers' matchers choose, as in a pull or an import. In the store the records say
what each handler has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError, InvalidInputError, SizeMismatchError
from imagestore.events import Resolved
from imagestore.oci.decode import limit_of
from imagestore.oci.digest import Verifier
from imagestore.oci.index import Index
from imagestore.oci.media_types import Kind
from imagestore.oci.referrers import fallback_tag, subject_of
from imagestore.platforms import format_all
from imagestore.store.archive import layout
from imagestore.store.archive.index_survey import ExportedImage, SurveyedManifest, survey
from imagestore.store.pull.choice import ManifestChooser, for_each_handler
from imagestore.store.pull.sources import Documents

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
    from typing import BinaryIO, Self

    from imagestore.config import HandlerPlatform
    from imagestore.content.api import ContentStore
    from imagestore.events import Observer
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.registry.blobs import Transfer
    from imagestore.registry.client import RegistryClient
    from imagestore.store.archive.contents import ArchiveContents, ArchiveOrigin
    from imagestore.store.copy.options import CopyOptions
    from imagestore.store.pull.choice import Choice
    from imagestore.store.pull.sources import Origin
    from imagestore.util.cancel import CancelToken

    #: Lists what refers to a document.
    ReferrerList = Callable[[Digest], Sequence[Descriptor]]

_PIECE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CopySource:
    """An image that is about to be copied.

    Attributes:
        image: what was chosen of it.
        registry: where it comes from; None where that is no registry.
        referrers: lists what refers to a document; None for a docker-archive, which can't have any.
    """

    image: ExportedImage
    documents: Documents
    origin: Origin
    registry: RegistryClient | None = None
    referrers: ReferrerList | None = None

    def open(self, descriptor: Descriptor, offset: int, *, cancel: CancelToken) -> Transfer:
        """A blob's bytes from an offset on, or from its beginning; the caller verifies them."""
        return self.origin.blob(self.image.reference, descriptor, offset=offset, avoid=(), cancel=cancel)

    def pieces(self, descriptor: Descriptor, *, cancel: CancelToken) -> Generator[bytes]:
        """A blob's or a document's bytes in pieces of at most 1 MiB.

        Raises:
            IntegrityError: at the end, if they aren't what the descriptor says.
        """
        if descriptor.kind in {Kind.INDEX, Kind.MANIFEST}:
            yield self.documents.raw(descriptor)
            return
        verifier = Verifier(descriptor.digest, descriptor.size, what=f"{descriptor.kind.value} {descriptor.digest}")
        buffer = memoryview(bytearray(_PIECE_BYTES))
        with self.open(descriptor, 0, cancel=cancel) as transfer:
            while count := transfer.readinto(buffer):
                verifier.update(buffer[:count])
                yield bytes(buffer[:count])
        verifier.finish()


class StoreOrigin:
    """The store's content as an Origin, as a registry is."""

    def __init__(self, content: ContentStore) -> None:
        self._content = content

    def document(self, reference: Reference, descriptor: Descriptor, *, cancel: CancelToken) -> bytes:
        """See Origin."""
        return self._content.read(descriptor.digest, limit_bytes=limit_of(descriptor.kind))

    def blob(
        self, reference: Reference, descriptor: Descriptor, *, offset: int, avoid: Collection[str], cancel: CancelToken
    ) -> Transfer:
        """See Origin."""
        return _StoredBlob(self._content.open(descriptor.digest), descriptor, offset)


class _StoredBlob:
    """The bytes of a blob of the store."""

    def __init__(self, file: BinaryIO, descriptor: Descriptor, offset: int) -> None:
        self.start = offset
        self.hosts: tuple[str, ...] = ()
        self._file = file
        self._descriptor = descriptor
        self._file.seek(offset)
        self._at = offset

    def readinto(self, buffer: memoryview) -> int:
        """Read into the buffer; 0 at the end.

        Raises:
            SizeMismatchError: the file ends before the size that the descriptor states.
        """
        count = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._at += count
        if not count and self._at < self._descriptor.size:
            what = f"content {self._descriptor.digest} at rest"
            raise SizeMismatchError(what, expected=self._descriptor.size, actual=self._at)
        return int(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class ImageChooser:
    """Chooses what is copied from a registry or an archive.

    Attributes:
        handlers: platforms by resolved handler name.
    """

    handlers: Mapping[str, HandlerPlatform]
    options: CopyOptions
    observer: Observer
    cancel: CancelToken

    def from_registry(self, client: RegistryClient, reference: Reference) -> CopySource:
        """An image of a registry.

        Raises:
            RegistryError, IntegrityError, DocumentError: it can't be had, or breaks its rules.
            NoMatchingManifestError: it has nothing for a handler's platform; carries the explanation.
        """
        target, raw = client.resolve_whole(reference, cancel=self.cancel)
        self.observer(Resolved(str(reference), target))
        documents = Documents(None, client, reference, self.cancel)
        if raw is not None:
            documents.remember(target, raw)
        image = self._image(reference, target, documents, lambda wanted: [each.digest for each in wanted])
        referrers = registry_referrers(client, reference, self.cancel)
        return CopySource(image=image, documents=documents, origin=client, registry=client, referrers=referrers)

    def from_archive(self, contents: ArchiveContents, reference: Reference, entry: Descriptor) -> CopySource:
        """An image of an archive or a layout.

        Raises:
            ContentNotFoundError, IntegrityError, DocumentError: the archive is damaged or partial.
            NoMatchingManifestError: it has nothing for a handler's platform; carries the explanation.
        """
        origin = contents.origin
        documents = Documents(None, origin, reference, self.cancel)
        image = self._image(
            reference, entry, documents, lambda wanted: [each.digest for each in wanted if origin.has(each.digest)]
        )
        referrers = archive_referrers(contents, reference, self.cancel)
        return CopySource(image=image, documents=documents, origin=origin, referrers=referrers)

    def _image(
        self,
        reference: Reference,
        target: Descriptor,
        documents: Documents,
        look: Callable[[Collection[Descriptor]], Collection[Digest]],
    ) -> ExportedImage:
        if self.options.all_platforms:
            everything = survey(target, documents, look)
            found = [each for each in everything if each.is_complete]
            left_out = tuple(each.label for each in everything if not each.is_complete)
            if not found:
                raise InvalidInputError(f"{reference}: the source has no platform of it whole")
        else:
            found = [_found(choice) for choice in self._choices(reference, target, documents)]
            chosen = {each.descriptor.digest for each in found}
            left_out = tuple(_labels(target, documents, chosen)) if target.kind is Kind.INDEX else ()
        found = list({each.descriptor.digest: each for each in found}.values())
        if not self.options.keeps_index:
            if len(found) > 1:
                raise DocumentError(str(reference), ["handlers choose several manifests, and one can go alone"])
            target = found[0].descriptor
        return ExportedImage(
            reference,
            target,
            tuple(found),
            tuple(each.label for each in found if not each.descriptor.is_attestation),
            left_out,
        )

    def _choices(self, reference: Reference, target: Descriptor, documents: Documents) -> list[Choice]:
        def _choose(handler: str) -> Choice:
            chooser = ManifestChooser(str(reference), handler, self.handlers[handler], self.observer)
            return chooser.complete(chooser.choose(target, documents), documents)

        return for_each_handler(self.handlers, _choose, is_lenient=self.options.all_handlers, observer=self.observer)


def _found(choice: Choice) -> SurveyedManifest:
    return SurveyedManifest(choice.chosen, choice.chain, choice.manifest, choice.platform, ())


def _labels(target: Descriptor, documents: Documents, chosen: Collection[object]) -> Iterator[str]:
    """What the entries of an index are called that aren't chosen; nested indexes count as one."""
    for entry in documents.index(target).manifests:
        if entry.digest not in chosen and not entry.is_attestation:
            yield format_all(entry.platform) if entry.platform is not None else str(entry.digest)


def registry_referrers(client: RegistryClient, reference: Reference, cancel: CancelToken) -> ReferrerList:
    """Lists what refers to a document of a repository."""
    return lambda subject: client.referrers(reference, subject, cancel=cancel).entries


def archive_referrers(contents: ArchiveContents, reference: Reference, cancel: CancelToken) -> ReferrerList | None:
    """Lists what refers to a document of a layout; None for a docker-archive, which can't have any."""
    return None if contents.listed is None else LayoutReferrers(contents.listed, contents.origin, reference, cancel)


class LayoutReferrers:
    """Lists what refers to a document of a layout; ``index.json`` is searched once, at the first call.

    A layout has no list of referrers. oras writes each as an entry of ``index.json`` without a name, whose ``subject``
    says what it refers to. regctl keeps an index under the tag of registries without the referrers API
    (distribution-spec, "Referrers Tag Schema"). Both are read; copies write the first form.

    Args:
        listed: the entries of ``index.json``.
    """

    def __init__(
        self, listed: Sequence[Descriptor], origin: ArchiveOrigin, reference: Reference, cancel: CancelToken
    ) -> None:
        self._listed = listed
        self._origin = origin
        self._reference = reference
        self._cancel = cancel
        self._found: dict[Digest, list[Descriptor]] | None = None

    def __call__(self, subject: Digest) -> Sequence[Descriptor]:
        """Referrers of a document; a list by tag may name what does not refer to it.

        Raises:
            ContentNotFoundError, IntegrityError, DocumentError: the layout is damaged or partial.
        """
        if self._found is None:
            self._found = self._by_subject()
        return [*self._found.get(subject, ()), *self._by_tag(subject)]

    def _by_subject(self) -> dict[Digest, list[Descriptor]]:
        found: dict[Digest, list[Descriptor]] = {}
        for entry in self._listed:
            if entry.kind is Kind.MANIFEST:
                subject = subject_of(self._raw(entry), f"manifest {entry.digest}")
                if subject is not None:
                    found.setdefault(subject, []).append(entry)
        return found

    def _by_tag(self, subject: Digest) -> Sequence[Descriptor]:
        tag = fallback_tag(subject)
        for entry in self._listed:
            if entry.kind is Kind.INDEX and entry.annotations.get(layout.REF_KEY) == tag:
                what = f"referrers of {subject}"
                return Index.parse(self._raw(entry), media_type=entry.media_type, what=what).manifests
        return ()

    def _raw(self, entry: Descriptor) -> bytes:
        return self._origin.document(self._reference, entry, cancel=self._cancel)
