"""What refers to an image (signatures, bills of materials): found in its registry, and written as an OCI layout."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.media_types import Kind
from imagestore.registry.events import Noticed
from imagestore.store.archive import layout
from imagestore.store.archive.index_survey import ExportedImage
from imagestore.store.archive.oci_export import blob_member
from imagestore.store.archive.writing import Member, write_folder
from imagestore.store.copy.sources import CopySource
from imagestore.store.pull.sources import Documents

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from imagestore.oci.digest import Digest
    from imagestore.oci.manifest import Manifest
    from imagestore.oci.reference import Reference
    from imagestore.registry.client import RegistryClient
    from imagestore.registry.events import Observer
    from imagestore.util.cancel import CancelToken

#: Documents that may refer to one image, those that refer to them included.
_MAX_REFERRERS: Final = 1000


@dataclass(frozen=True, slots=True)
class Referrer:
    """A manifest that refers to an image, or to another referrer.

    Attributes:
        descriptor: of it, as the registry lists it.
        raw: its bytes.
        manifest: what is in it.
    """

    descriptor: Descriptor
    raw: bytes
    manifest: Manifest


def find_referrers(
    client: RegistryClient,
    reference: Reference,
    subjects: Iterable[Digest],
    documents: Documents,
    *,
    observer: Observer,
    cancel: CancelToken,
) -> Iterator[Referrer]:
    """What refers to some documents, and to what refers to them, each once, subjects first.

    Args:
        client: of registries.
        reference: names the repository.
        subjects: digests of the documents.
        documents: reads manifests.
        observer: hears what is left out.
        cancel: ends the search.

    Raises:
        RegistryError, IntegrityError, DocumentError: a list or a manifest can't be had, or there are too many.
    """
    pending = deque(dict.fromkeys(subjects))
    seen = set(pending)
    while pending:
        for entry in client.referrers(reference, pending.popleft(), cancel=cancel).entries:
            if entry.digest in seen:
                continue
            seen.add(entry.digest)
            pending.append(entry.digest)
            if len(seen) > _MAX_REFERRERS:
                raise DocumentError(str(reference), [f"more than {_MAX_REFERRERS} documents refer to it"])
            if entry.kind is not Kind.MANIFEST:
                observer(Noticed(f"referrer {entry.digest} is no manifest and is left out"))
                continue
            yield _read(entry, documents)


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
        client: of registries.
        reference: names the repository.
        entries: the referrers, as a registry lists them.
        folder: new, or empty.
        observer: hears of progress, and what is left out.
        cancel: ends it; nothing is left then.

    Returns:
        Bytes written.

    Raises:
        AlreadyExistsError, InvalidInputError, PreconditionError: the folder can't be written.
        RegistryError, IntegrityError, DocumentError, OperationCancelledError: something can't be fetched.
    """
    documents = Documents(None, client, reference, cancel)
    left_out = [entry for entry in entries if entry.kind is not Kind.MANIFEST]
    for entry in left_out:
        observer(Noticed(f"referrer {entry.digest} is no manifest and is left out"))
    found = [_read(entry, documents) for entry in entries if entry not in left_out]
    source = CopySource(ExportedImage(reference, entries[0], (), (), ()), documents, client)

    def read(descriptor: Descriptor) -> Generator[bytes]:
        return source.pieces(descriptor, cancel=cancel)

    blobs = {each.digest: each for one in found for each in (_bare(one.descriptor), *one.manifest.children)}
    files = [blob_member(layout.blob_name(each.digest), each, read) for each in blobs.values()]
    index = layout.render_index(one.descriptor for one in found)
    files += [Member.of(layout.MARK, layout.render_mark()), Member.of(layout.INDEX, index)]
    return write_folder(folder, files, observer=observer, cancel=cancel)


def _read(entry: Descriptor, documents: Documents) -> Referrer:
    bare = _bare(entry)
    return Referrer(replace(entry, data=None, urls=()), documents.raw(bare), documents.manifest(bare))


def _bare(entry: Descriptor) -> Descriptor:
    """Without what a list says of it."""
    return Descriptor(entry.media_type, entry.digest, entry.size)
