"""What refers to an image (signatures, bills of materials): found where the image is, and written as an OCI layout.

A referrer is a manifest whose ``subject`` is the image's index or manifest, or another referrer (OCI image-spec 1.1,
manifest.md, and distribution-spec 1.1, "Listing Referrers"). A registry lists them; ``archive.layout_referrers`` finds
those of a layout, ``stored_referrers`` those of the store.
"""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError, InvalidInputError, NotFoundError
from imagestore.events import Noticed
from imagestore.oci import layout
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.media_types import Kind
from imagestore.oci.referrers import subject_of
from imagestore.store.archive.archive_members import layout_files
from imagestore.store.archive.index_survey import SurveyedManifest
from imagestore.store.archive.writing import write_folder
from imagestore.store.image_source import in_registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from imagestore.events import Observer
    from imagestore.oci.digest import Digest
    from imagestore.oci.manifest import Manifest
    from imagestore.oci.reference import Reference
    from imagestore.registry.client import RegistryClient
    from imagestore.store.archive.index_survey import ExportedImage
    from imagestore.store.image_source import ImageSource
    from imagestore.store.pull.sources import Documents
    from imagestore.util.cancel import CancelToken

#: Documents that may refer to one image, those that refer to them included.
_MAX_REFERRERS: Final = 1000


@dataclass(frozen=True, slots=True)
class Referrer:
    """A manifest that refers to an image, or to another referrer.

    Attributes:
        descriptor: of it, with artifact type and annotations, as lists have it.
        subject: digest of what it refers to.
    """

    descriptor: Descriptor
    raw: bytes
    manifest: Manifest
    subject: Digest

    @property
    def bare(self) -> Descriptor:
        """Its descriptor without what lists say of it."""
        return _bare(self.descriptor)

    @property
    def surveyed(self) -> SurveyedManifest:
        """As an archive has it."""
        return SurveyedManifest(self.descriptor, (), self.manifest, None, ())


def referrers_of(image: ExportedImage, source: ImageSource, *, observer: Observer) -> tuple[Referrer, ...]:
    """What refers to an image that is about to be copied: to its target, and to each of its manifests.

    Raises:
        ImageStoreError: as find_referrers().
    """
    subjects = (image.target.digest, *(found.descriptor.digest for found in image.manifests))
    return tuple(find_referrers(source, subjects, observer=observer))


def no_referrers(what: str) -> InvalidInputError:
    """The error for a docker-archive on either side of a copy."""
    return InvalidInputError(
        f"{what}: a docker-archive can't carry referrers, since it has no manifests that they could refer to",
        hint="use an OCI layout (oci:) or an OCI archive (oci-archive:), or leave out --referrers",
    )


def find_referrers(source: ImageSource, subjects: Iterable[Digest], *, observer: Observer) -> Iterator[Referrer]:
    """What refers to some documents, and to what refers to them, each once, subjects first.

    Args:
        subjects: digests of the documents.

    Raises:
        InvalidInputError: the source is a docker-archive, or the store, which doesn't have them.
        RegistryError, IntegrityError, DocumentError, NotFoundError: a list or a manifest can't be had, or there are too
            many. One that is listed and isn't there any more is left out.
    """
    if source.referrers is None:
        raise no_referrers(str(source.reference))
    documents = source.documents
    pending = deque(dict.fromkeys(subjects))
    seen = set(pending)
    while pending:
        subject = pending.popleft()
        for entry in source.referrers(subject):
            if entry.digest in seen:
                continue
            seen.add(entry.digest)
            if len(seen) > _MAX_REFERRERS:
                raise DocumentError(str(source.reference), [f"more than {_MAX_REFERRERS} documents refer to it"])
            bare, manifest = _bare(entry), _read(entry, documents, observer)
            if manifest is None:
                continue
            raw = documents.raw(bare)
            if subject_of(raw, f"manifest {entry.digest}") != subject:
                observer(
                    Noticed(f"{entry.digest} is listed as a referrer of {subject}, does not name it and is left out")
                )
                continue
            pending.append(entry.digest)
            yield Referrer(_described(bare, manifest), raw, manifest, subject)


def fetch_referrers(
    client: RegistryClient,
    reference: Reference,
    entries: Sequence[Descriptor],
    folder: str,
    *,
    observer: Observer,
    cancel: CancelToken,
) -> int:
    """Write referrers as an OCI layout, each an entry of its index, verified.

    Args:
        entries: the referrers, as a registry lists them.
        folder: new, or empty.
        cancel: ends it; nothing is left then.

    Returns:
        Bytes written.

    Raises:
        AlreadyExistsError, InvalidInputError, PreconditionError: the folder can't be written.
        RegistryError, IntegrityError, DocumentError, OperationCancelledError: something can't be fetched.
    """
    source = in_registry(client, reference, cancel)
    found = [(_bare(entry), _read(entry, source.documents, observer)) for entry in entries]
    manifests = [(bare, manifest) for bare, manifest in found if manifest is not None]
    blobs = {each.digest: each for bare, manifest in manifests for each in (bare, *manifest.children)}
    listed = [_described(bare, manifest) for bare, manifest in manifests]
    files = layout_files(blobs.values(), listed, functools.partial(source.pieces, cancel=cancel))
    return write_folder(folder, files, observer=observer, cancel=cancel)


def _read(entry: Descriptor, documents: Documents, observer: Observer) -> Manifest | None:
    """A listed manifest; None if it is none, or isn't there any more: a list under a tag names what was deleted."""
    if entry.kind is not Kind.MANIFEST:
        observer(Noticed(f"referrer {entry.digest} is no manifest and is left out"))
        return None
    try:
        return documents.manifest(_bare(entry))
    except NotFoundError as error:
        observer(Noticed(f"referrer {entry.digest} is listed, is not there and is left out ({error})"))
        return None


def _described(bare: Descriptor, manifest: Manifest) -> Descriptor:
    """With what lists say of a referrer."""
    return replace(
        bare,
        # A name among its own annotations would make it an image of that name in a layout.
        annotations={key: value for key, value in manifest.annotations.items() if key not in layout.NAME_KEYS},
        artifact_type=manifest.artifact_type or manifest.config.media_type,
    )


def _bare(entry: Descriptor) -> Descriptor:
    """Without what a list says of it."""
    return Descriptor(entry.media_type, entry.digest, entry.size)
