"""Images that containers use, as their runtime says: noted for some hours, so that they are spared while it is away.

A time of use alone doesn't spare an image: on a full disk the longest unused one goes, however lately it was used. So
those in use are named by a lease too, which no policy overrides and a removal does. The lease ends by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.metadata.records import image_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.metadata.api import MetadataStore

#: How long a note lasts that isn't renewed: a runtime may be stopped for a night's work on the node.
IN_USE_SECONDS: Final = 12 * 3600.0
_LEASE: Final = "in-use-"


def note(
    metadata: MetadataStore, images: Iterable[tuple[str, str]], *, holder: str, seconds: float, default_handler: str
) -> tuple[tuple[str, str], ...]:
    """See ImageStore.note_in_use(); ``default_handler`` is the one that a name without a handler means."""
    wanted = dict.fromkeys(images)
    found = {
        (line.reference, line.handler): None
        for image_id, handler in wanted
        for line in metadata.images.find_listed(image_id=image_id, handler=handler or None)
    }
    metadata.images.touch_many(list(found))
    lease_id = f"{_LEASE}{holder}"
    with metadata.transient():
        metadata.leases.delete(lease_id, is_of_work=True)
        if found:
            metadata.leases.create(lease_id, lifetime_seconds=seconds)
        for reference, handler in found:
            metadata.leases.add_image(lease_id, image_name(reference, handler, default_handler), default_handler)
    return tuple(found)
