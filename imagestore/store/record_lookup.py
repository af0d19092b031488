"""Which records a name, id or digest means; docs/embed.md has the rules where CRI leaves them open.

A text is a reference, an image id (whole, or a beginning of at least four hex digits, with or without ``sha256:``), or
a repository digest (``name@sha256:…`` of the index or the manifest).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    ImageNotFoundError,
    InvalidDigestError,
    InvalidInputError,
    InvalidReferenceError,
    StoreCorruptError,
)
from imagestore.metadata.records import image_name
from imagestore.oci.digest import Digest
from imagestore.oci.reference import Reference
from imagestore.util.logins import reference_without_login

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from imagestore.config import Config
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor

_ID: Final = re.compile(r"(?:(sha256|sha384|sha512):)?([a-f0-9]{4,128})")


def refuse_unreadable(text: str) -> None:
    """Refuse a text that can't name an image in any store.

    Raises:
        InvalidReferenceError: it is neither a reference nor an image id or the beginning of one.
    """
    try:
        Reference.parse(text)
    except InvalidReferenceError:
        if _ID.fullmatch(text) is None:
            raise


def not_found(text: str, handler: str | None = None, *, hint: str = "") -> ImageNotFoundError:
    """The error for a name that no image has, or none of this handler."""
    under = f" under runtime handler {handler!r}" if handler else ""
    return ImageNotFoundError(
        f"image {reference_without_login(text)!r} is not in the store{under}", hint=hint or missing_hint(text)
    )


def missing_hint(text: str) -> str:
    """The hint for a name that no image has.

    >>> missing_hint("python:3"), missing_hint("python")
    ('pull it first', 'it names no tag and so means docker.io/library/python:latest; name the tag, or pull it first')
    """
    meaning = untagged(text)
    return f"{meaning}; name the tag, or pull it first" if meaning else "pull it first"


def untagged(text: str) -> str:
    """What a name without tag means, in words; empty for other names and for what may be an id."""
    try:
        reference = Reference.parse(text)
    except InvalidReferenceError:
        return ""
    if reference.digest is not None or text.endswith(f":{reference.tag}") or _ID.fullmatch(text) is not None:
        return ""
    return f"it names no tag and so means {reference}"


def canonical(text: str) -> str | None:
    """A reference in canonical form; None if the text is no reference."""
    try:
        return str(Reference.parse(text))
    except InvalidReferenceError:
        return None


def pinned_by(config: Config) -> frozenset[str]:
    """The references that a configuration pins, in canonical form; an invalid one is returned unchanged."""
    return frozenset(canonical(text) or text for text in config.settings.pinned_images.values())


def keys(records: Iterable[ImageRecord]) -> tuple[tuple[str, str], ...]:
    """(reference, runtime handler) of records."""
    return tuple((record.reference, record.handler) for record in records)


def by_name(metadata: MetadataStore, text: str) -> list[ImageRecord]:
    """Records under a reference, of every handler; empty if the text is no reference.

    A reference with a digest also finds records of that repository whose index or manifest it is.
    """
    try:
        reference = Reference.parse(text)
    except InvalidReferenceError:
        return []
    found = metadata.images.find(reference=str(reference))
    if not found and reference.digest is not None:
        holders = metadata.images.find_by_root(reference.digest)
        found = [record for record in holders if Reference.parse(record.reference).name == reference.name]
    return found


def by_id(metadata: MetadataStore, text: str) -> list[ImageRecord]:
    """Records, of every handler, whose image id begins with the text, or that hold the index or manifest it names.

    Raises:
        InvalidInputError: several images have ids that begin so.
    """
    found = _ID.fullmatch(text)
    if found is None:
        return []
    records = metadata.images.find(image_id_prefix=f"{found.group(1) or 'sha256'}:{found.group(2)}")
    ids = sorted({str(record.image_id) for record in records})
    if len(ids) > 1:
        raise InvalidInputError(
            f"image id {text!r} fits {len(ids)} images: {', '.join(ids[:4])}", hint="give more of it"
        )
    if records:
        return records
    try:
        return metadata.images.find_by_root(Digest.parse(text))
    except InvalidDigestError:
        return []


def by_name_or_id(metadata: MetadataStore, text: str) -> list[ImageRecord]:
    """by_name(), or if there is none by_id().

    Raises:
        InvalidInputError: several images have ids that begin so.
    """
    return by_name(metadata, text) or by_id(metadata, text)


def find(metadata: MetadataStore, text: str, handler: str | None, default_handler: str) -> ImageRecord | None:
    """The one record that a status request means; None if there is none.

    With a handler its record; without one the default handler's, and by id or digest else the first by handler name.

    Raises:
        InvalidInputError: several images have ids that begin so.
    """
    named = by_name(metadata, text)
    records = named or by_id(metadata, text)
    if handler is not None:
        return next((record for record in records if record.handler == handler), None)
    preferred = next((record for record in records if record.handler == default_handler), None)
    if preferred is not None or (named and "@" not in text):
        return preferred
    return min(records, key=lambda record: (record.handler, record.reference), default=None)


def target(metadata: MetadataStore, text: str, handlers: Collection[str]) -> Descriptor:
    """What a name, id or digest leads to in the records of these handlers, or if there are none of all handlers.

    Raises:
        ImageNotFoundError: there is no such record.
        InvalidInputError: the records lead to several targets, since the tag moved between two pulls; or several images
            have ids that begin so.
    """
    records = by_name_or_id(metadata, text)
    if not records:
        raise not_found(text, hint="ask the registry instead")
    own = [record for record in records if record.handler in handlers] or records
    targets = {record.target.digest: record.target for record in own}
    if len(targets) > 1:
        raise InvalidInputError(
            f"{text}: leads to {len(targets)} contents here: {', '.join(map(str, targets))}",
            hint="name one of the runtime handlers that have it, or one of these digests",
        )
    return own[0].target


@dataclass(frozen=True, slots=True)
class RemovalRule:
    """How a removal, a pin or a tag understands a name.

    Attributes:
        handler: only this handler's records. None: by id or digest every handler's; by name the default handler's, or,
            if it has none, all handlers'.
        default_handler: see there.
        is_for_all: every handler's, by name too.
        all_names: a name means all references of its image, as in CRI; else only itself, as with docker.
    """

    handler: str | None
    default_handler: str
    is_for_all: bool = False
    all_names: bool = False

    def chosen(self, images: set[tuple[str, str]]) -> list[tuple[str, str]]:
        """Of the images under a reference, by handler and id, those that are meant, in the order of their removal."""
        if self.is_for_all:
            return sorted(images)
        wanted = self.default_handler if self.handler is None else self.handler
        found = sorted(image for image in images if image[0] == wanted)
        return sorted(images) if not found and self.handler is None else found


def meant(metadata: MetadataStore, text: str, rule: RemovalRule) -> list[ImageRecord]:
    """The records that a name means, without other references of the same images.

    Raises:
        InvalidInputError: the text is empty, or several images have ids that begin so.
    """
    if not text:
        raise InvalidInputError("an empty name means no image")
    named = by_name(metadata, text)
    records = named or by_id(metadata, text)
    if rule.is_for_all:
        return records
    if rule.handler is not None:
        return [record for record in records if record.handler == rule.handler]
    if named and "@" not in text:
        return [record for record in records if record.handler == rule.default_handler] or records
    return records


def to_remove(metadata: MetadataStore, text: str, rule: RemovalRule) -> list[ImageRecord]:
    """The records that a removal of a name means.

    A reference means its own record, ``name@digest`` what the repository has of that digest, ``name:tag@digest`` the
    tag's if it leads there. An id, a digest alone, and with ``all_names`` any name, means the image of each handler
    with all its references.

    Raises:
        InvalidInputError: as meant().
        StoreCorruptError: the index of image ids lacks a record.
    """
    records = meant(metadata, text, rule)
    own = None if rule.all_names else _by_own_name(records, text)
    if own is not None:
        return own
    given = {(record.reference, record.handler): record for record in records}
    found = [
        record
        for handler, image_id in sorted({(record.handler, str(record.image_id)) for record in records})
        for record in metadata.images.find(image_id_prefix=image_id, handler=handler)
    ]
    for key in given.keys() - {(record.reference, record.handler) for record in found}:
        check_gone(metadata, key, given[key].image_id)
    return found


def check_gone(metadata: MetadataStore, key: tuple[str, str], image_id: Digest) -> None:
    """Check that a record which the index of image ids lacks was removed or changed in the meantime.

    Raises:
        StoreCorruptError: it is still there.
    """
    record = metadata.images.get(*key)
    if record is not None and record.image_id == image_id:
        raise StoreCorruptError(
            f"the database's index of image ids lacks {record.reference} ({record.handler})",
            hint="run 'imagestore check --rebuild'",
        )


def _by_own_name(records: Sequence[ImageRecord], text: str) -> list[ImageRecord] | None:
    """Of the records that a text means, those that it names; None if it is an id or a digest."""
    try:
        reference = Reference.parse(text)
    except InvalidReferenceError:
        return None
    if all(record.reference == str(reference) for record in records):
        return list(records)
    if reference.digest is None:
        return None
    return [each for each in records if not reference.tag or Reference.parse(each.reference).tag == reference.tag]


def drop_hidden(metadata: MetadataStore, keys: Iterable[tuple[str, str]], default_handler: str) -> list[str]:
    """Remove the images of containerd's clients that removed records, (reference, handler), hid; same transaction.

    Returns digests of the content that these images held, in text form.
    """
    return metadata.named_images.drop_home(
        [image_name(reference, handler, default_handler) for reference, handler in keys]
    )
