"""Tagging: a stored image gets a further reference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from imagestore.errors import InvalidInputError, StoreBusyError
from imagestore.oci.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def tag_records(metadata: MetadataStore, records: Sequence[ImageRecord], further: Reference) -> list[ImageRecord]:
    """Write each record once more, under another reference; return the new records, by handler.

    The records are as they were read. Of several of one handler (they hold the same image) the first counts.

    Raises:
        StoreBusyError: one was changed since it was read; nothing was written.
    """
    stored = []
    with metadata.exclusive():
        for owner, record in sorted({each.handler: each for each in reversed(records)}.items()):
            now = metadata.images.get(record.reference, owner)
            # If it is still there, so is all that it needs.
            if now is None or now.target != record.target:
                raise StoreBusyError(f"image {record.reference!r} was changed or removed since then", hint="try again")
            new = replace(now, reference=str(further), is_pinned=False, created_at=0.0)
            stored.append(now if now.reference == new.reference else metadata.images.put(new, {}))
    return stored
