"""Further references for images that are here, and fewer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from imagestore.errors import InvalidInputError, StoreBusyError
from imagestore.oci.reference import Reference
from imagestore.store import record_lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord


def further_reference(text: str) -> Reference:
    """A reference that an image can be given.

    Raises:
        InvalidReferenceError: it is none.
        InvalidInputError: it has a digest, which says what the image is.
    """
    reference = Reference.parse(text)
    if reference.digest is not None:
        raise InvalidInputError(
            f"reference {text!r}: expected a name and a tag, it has a digest", hint="leave the digest out"
        )
    return reference


def tag(metadata: MetadataStore, records: Sequence[ImageRecord], further: Reference) -> list[ImageRecord]:
    """Write each record once more, under another reference.

    Args:
        metadata: where they are.
        records: as they were read. Of several of one handler (they hold the same image) the first counts.
        further: the reference.

    Returns:
        The new records, by handler.

    Raises:
        StoreBusyError: one isn't as it was read any more; nothing was written.
    """
    stored = []
    with metadata.exclusive():
        for owner, record in sorted({each.handler: each for each in reversed(records)}.items()):
            now = metadata.images.get(record.reference, owner)
            # Where it is still there, all that it needs is too.
            if now is None or now.target != record.target:
                raise StoreBusyError(f"image {record.reference!r} was changed or removed since then", hint="try again")
            new = replace(now, reference=str(further), is_pinned=False, created_at=0.0)
            stored.append(now if now.reference == new.reference else metadata.images.put(new, {}))
    return stored


def untag(metadata: MetadataStore, records: Iterable[ImageRecord], default_handler: str) -> tuple[tuple[str, str], ...]:
    """Remove records whose images have other references.

    Args:
        metadata: where they are.
        records: at most one of a handler.
        default_handler: whose records go by their references alone at containerd's clients.

    Returns:
        (reference, handler) of what was removed.

    Raises:
        InvalidInputError: an image has no other; nothing was removed.
    """
    with metadata.exclusive():
        for each in records:
            if len(metadata.images.find(image_id_prefix=str(each.image_id), handler=each.handler)) < 2:
                raise InvalidInputError(
                    f"image {each.reference!r} has no other reference under runtime handler {each.handler!r}",
                    hint="to remove the image: imagestore rmi",
                )
        removed = metadata.images.remove([(each.reference, each.handler) for each in records])
        keys = tuple((each.reference, each.handler) for each in removed)
        record_lookup.drop_hidden(metadata, keys, default_handler)
    return keys
