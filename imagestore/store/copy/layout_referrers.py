"""What refers to the documents of an OCI layout.

A layout has no list of referrers. oras writes each as an entry of ``index.json`` without a name, whose ``subject`` says
what it refers to. regctl keeps an index under the name that the distribution specification has for registries without
the referrers API ("Referrers Tag Schema"). Both are read; copies write the first form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.oci.index import Index
from imagestore.oci.media_types import Kind
from imagestore.oci.referrers import fallback_tag, subject_of
from imagestore.store.archive import layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.store.archive.contents import ArchiveOrigin
    from imagestore.util.cancel import CancelToken


class LayoutReferrers:
    """Lists what refers to a document of a layout; ``index.json`` is searched once, when first asked.

    Args:
        listed: the entries of ``index.json``.
        origin: gives the documents.
        reference: names the image in messages.
        cancel: ends the search.
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

        Args:
            subject: digest of the document.

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
