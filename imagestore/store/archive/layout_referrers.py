"""What refers to the images of a layout.

A layout has no list of referrers. oras writes each as an entry of ``index.json`` without a name, whose ``subject`` says
what it refers to. regctl keeps an index under the tag of registries without the referrers API (distribution-spec,
"Referrers Tag Schema"). Both are read; copies write the first form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.oci import layout
from imagestore.oci.media_types import Kind
from imagestore.oci.referrers import fallback_tag, subject_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.pull.sources import Documents


class LayoutReferrers:
    """Lists what refers to a document of a layout; ``index.json`` is searched once, at the first call.

    Args:
        listed: the entries of ``index.json``.
    """

    def __init__(self, listed: Sequence[Descriptor], documents: Documents) -> None:
        self._listed = listed
        self._documents = documents
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
                subject = subject_of(self._documents.raw(entry), f"manifest {entry.digest}")
                if subject is not None:
                    found.setdefault(subject, []).append(entry)
        return found

    def _by_tag(self, subject: Digest) -> Sequence[Descriptor]:
        tag = fallback_tag(subject)
        for entry in self._listed:
            if entry.kind is Kind.INDEX and entry.annotations.get(layout.REF_KEY) == tag:
                return self._documents.index(entry).manifests
        return ()
