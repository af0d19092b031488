"""What a reference led to before, as far as it is here: the registry's word that it still does saves fetching it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagestore.content.api import ContentStore
    from imagestore.metadata.api import MetadataStore
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.reference import Reference


def known_targets(metadata: MetadataStore, content: ContentStore, reference: Reference) -> list[Descriptor]:
    """The targets under every handler whose document the store has."""
    found = [record.target for record in metadata.find_images(reference=str(reference))]
    return [target for target in found if content.exists(target.digest)]
