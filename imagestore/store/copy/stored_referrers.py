"""What refers to the images of the store, kept by labels on content.

A subject's content has ``containerd.io/gc.ref.content.referrer.<algorithm>-<hex>`` for each referrer, and a referrer's
content the labels that containerd gives a manifest's children. So a collection keeps a referrer as long as any image
has its subject, and frees it afterwards. The labels are in the copies of the records, so a rebuild restores them.

The label ``imagestore/referrers`` says that they were looked for. Without it, whether there are any is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import ContentNotFoundError, InvalidInputError
from imagestore.oci.decode import MAX_DOCUMENT_BYTES, decode
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.gc_labels import REFERENCE, ContentTerms
from imagestore.oci.media_types import OCI_MANIFEST
from imagestore.oci.referrers import fallback_tag
from imagestore.store import leases
from imagestore.store.pull.fetch import Fetcher
from imagestore.store.pull.fetch_pipeline import fetch_order
from imagestore.store.pull.present import check_present, make_names_durable
from imagestore.store.pull.undo import undone_on_failure

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from imagestore.content.api import ContentStore
    from imagestore.events import Observer
    from imagestore.metadata.api import MetadataStore
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.store.copy.referrers import Referrer
    from imagestore.store.image_source import ImageSource
    from imagestore.store.parts import StoreParts
    from imagestore.util.cancel import CancelToken

_REFERRER: Final = f"{REFERENCE}.referrer."
_LOOKED_FOR: Final = "imagestore/referrers"


class StoredReferrers:
    """Lists what refers to a document of the store."""

    def __init__(self, metadata: MetadataStore, content: ContentStore, reference: Reference) -> None:
        self._metadata = metadata
        self._content = content
        self._reference = reference

    def __call__(self, subject: Digest) -> Sequence[Descriptor]:
        """Referrers of a document.

        Raises:
            InvalidInputError: they were never copied into the store.
            ContentNotFoundError, IntegrityError: one was damaged from outside.
        """
        labels = self._metadata.graph.content_labels(subject)
        if _LOOKED_FOR not in labels:
            name = self._reference
            raise InvalidInputError(
                f"{name}: its referrers were not copied into the store: a pull leaves them in the registry",
                hint=f"imagestore copy --referrers {name} store:{name} fetches them; or leave out --referrers",
            )
        kept = {key: value for key, value in labels.items() if key.startswith(_REFERRER)}
        return [self._listed(digest) for digest in ContentTerms.of(kept).references]

    def _listed(self, digest: Digest) -> Descriptor:
        try:
            raw = self._content.read(digest, limit_bytes=MAX_DOCUMENT_BYTES)
        except ContentNotFoundError as error:
            error.hint = f"imagestore copy --referrers {self._reference} store:{self._reference} fetches it again"
            raise
        stated = decode(raw, f"manifest {digest}").get("mediaType")
        return Descriptor(str(stated or OCI_MANIFEST), digest, len(raw))


def keep_referrers(
    parts: StoreParts,
    subjects: Collection[Digest],
    found: Sequence[Referrer],
    source: ImageSource,
    *,
    observer: Observer,
    cancel: CancelToken,
) -> None:
    """Bring referrers into the store, and keep them as long as an image has their subject.

    Args:
        subjects: digests of the image's documents, for all of which referrers were looked for.
        found: the referrers; others that the store has stay.

    Raises:
        RegistryError, IntegrityError, NotFoundError, StoreError, OperationCancelledError: the image stays as it is,
            without these referrers.
    """
    content, metadata = parts.content, parts.metadata
    documents = {each.bare.digest: each.bare for each in found}
    blobs = {child.digest: child for each in found for child in each.manifest.children}
    everything = tuple((blobs | documents).values())
    leased = [*subjects, *(each.digest for each in everything)]
    with (
        leases.held(metadata, purpose="copy", digests=leased, content=content) as held,
        undone_on_failure(metadata, content, held, everything, held.here),
        content.small_blobs(cancel) as small_blobs,
    ):
        fetcher = Fetcher(content, source.origin, source.reference, observer, held.renew, small_blobs)
        fetcher.check(everything, held.here)
        with fetcher.pipeline(cancel) as pipeline:
            for each in found:
                fetcher.keep(each.bare, each.raw, cancel=pipeline.cancel, pipeline=pipeline)
            pipeline.receive(fetch_order(blobs.values()))
        make_names_durable(content, everything)
        with metadata.exclusive():
            check_present(content, everything, what=str(source.reference))
            for digest, labels in _labels(subjects, found).items():
                metadata.graph.label_content(digest, {**metadata.graph.content_labels(digest), **labels})


def _labels(subjects: Collection[Digest], found: Sequence[Referrer]) -> dict[Digest, dict[str, str]]:
    """What is added to the labels of each subject and each referrer."""
    labels = {digest: {_LOOKED_FOR: "copied"} for digest in (*subjects, *(each.bare.digest for each in found))}
    for each in found:
        digest, manifest = each.bare.digest, each.manifest
        labels[each.subject][f"{_REFERRER}{fallback_tag(digest)}"] = str(digest)
        labels[digest][f"{REFERENCE}.config"] = str(manifest.config.digest)
        labels[digest] |= {f"{REFERENCE}.l.{number}": str(one.digest) for number, one in enumerate(manifest.layers)}
    return labels
