"""Which records a name, id or digest means; the rules where CRI leaves them open are one table in docs/embed.md.

Names, image ids (whole, or a beginning of at least four hex digits, with or without ``sha256:``), and repository
digests (``name@sha256:…`` of the index or the manifest) are understood.
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
        InvalidReferenceError: it is neither an image id, or the beginning of one, nor a reference.
    """
    try:
        Reference.parse(text)
    except InvalidReferenceError:
        if _ID.fullmatch(text) is None:
            raise


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


def by_name(metadata: MetadataStore, text: str) -> list[ImageRecord]:
    """Records under a reference, for every handler; empty when the text isn't one or has none.

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
    """Records whose image id is or begins with the text, or that hold the index or manifest of this digest.

    For every handler; empty when the text is neither.

    Raises:
        InvalidInputError: the beginning fits several images.
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
    return records or _by_root(metadata, text)


def _by_root(metadata: MetadataStore, text: str) -> list[ImageRecord]:
    try:
        return metadata.images.find_by_root(Digest.parse(text))
    except InvalidDigestError:
        return []


def pinned_by(config: Config) -> frozenset[str]:
    """The references that a configuration pins, in canonical form; an invalid one is returned unchanged."""
    return frozenset(_canonical(text) or text for text in config.settings.pinned_images.values())


def _canonical(text: str) -> str | None:
    """A reference in canonical form; None for what isn't one."""
    try:
        return str(Reference.parse(text))
    except InvalidReferenceError:
        return None


def find(metadata: MetadataStore, text: str, handler: str | None, default_handler: str) -> ImageRecord | None:
    """The one record a status request means.

    Args:
        metadata: the records.
        text: name, id, beginning of an id, or name with digest.
        handler: only this handler's records; None applies the rules for requests without one.
        default_handler: preferred then.

    Returns:
        By name without a handler: the default handler's record. By id or digest without a handler: the default
        handler's, else the first by handler name. None when there is no such record.

    Raises:
        InvalidInputError: the id's beginning is ambiguous.
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
    """What a name, id or digest leads to in the store.

    Args:
        metadata: the records.
        text: name, id, beginning of an id, or name with digest.
        handlers: their records count, if there are any, else those of all handlers.

    Raises:
        ImageNotFoundError: there is no such record.
        InvalidInputError: the handlers' records lead to several contents, since the tag has moved between two pulls; or
            the id's beginning is ambiguous.
    """
    records = by_name(metadata, text) or by_id(metadata, text)
    if not records:
        raise ImageNotFoundError(f"image {text!r} is not in the store", hint="ask the registry instead")
    own = [record for record in records if record.handler in handlers] or records
    targets = {record.target.digest: record.target for record in own}
    if len(targets) > 1:
        raise InvalidInputError(
            f"{text}: leads to {len(targets)} contents here: {', '.join(map(str, targets))}",
            hint="name one of the runtime handlers that have it, or one of these digests",
        )
    return own[0].target


def meant(metadata: MetadataStore, text: str, handler: str | None, default_handler: str) -> list[ImageRecord]:
    """The records that a change means: as doomed(), without other references of the same images.

    Raises:
        InvalidInputError: the id's beginning is ambiguous.
    """
    named = by_name(metadata, text)
    records = named or by_id(metadata, text)
    if handler is not None:
        return [record for record in records if record.handler == handler]
    if named and "@" not in text:
        return [record for record in records if record.handler == default_handler] or records
    return records


def doomed(metadata: MetadataStore, text: str, handler: str | None, default_handler: str) -> list[ImageRecord]:
    """The records a removal means.

    Args:
        metadata: the records.
        text: name, id, beginning of an id, or name with digest.
        handler: only this handler's records; None applies the rules for requests without one.
        default_handler: meant by a bare name.

    Returns:
        Per handler the whole image, that is all its references, as CRI defines removal. By id or digest without a
        handler: under every handler. By name without a handler: under the default handler, or, when the name exists
        only under others, under those.

    Raises:
        InvalidInputError: the id's beginning is ambiguous.
    """
    return with_namesakes(metadata, meant(metadata, text, handler, default_handler))


def with_namesakes(metadata: MetadataStore, records: Iterable[ImageRecord]) -> list[ImageRecord]:
    """The whole images that some records are of: per handler all their references.

    Raises:
        StoreCorruptError: the index of image ids lacks one of the records.
    """
    given = {(record.reference, record.handler): record for record in records}
    images = {(str(record.image_id), record.handler) for record in given.values()}
    found = [
        record
        for image_id, owner in sorted(images)
        for record in metadata.images.find(image_id_prefix=image_id, handler=owner)
    ]
    here = {(record.reference, record.handler) for record in found}
    for key in given.keys() - here:
        _check_found(metadata, key, given[key].image_id)
    return found


def _check_found(metadata: MetadataStore, key: tuple[str, str], image_id: Digest) -> None:
    """Check that a record missing from the index of image ids was removed or changed in the meantime."""
    record = metadata.images.get(*key)
    if record is not None and record.image_id == image_id:
        raise StoreCorruptError(
            f"the database's index of image ids lacks {record.reference} ({record.handler})",
            hint="run 'imagestore check --rebuild'",
        )


def by_own_name(records: Sequence[ImageRecord], text: str) -> list[ImageRecord] | None:
    """Of the records that a text means, those that it means by their names; None if it is an id or a digest.

    ``name@digest`` names what the repository has of that digest, ``name:tag@digest`` only the tag, if it leads there.
    """
    try:
        reference = Reference.parse(text)
    except InvalidReferenceError:
        return None
    if all(record.reference == str(reference) for record in records):
        return list(records)
    if reference.digest is None:
        return None
    return [each for each in records if not reference.tag or Reference.parse(each.reference).tag == reference.tag]


@dataclass(frozen=True, slots=True)
class RemovalRule:
    """Which records the removal of a plain reference means.

    Attributes:
        handler: only this handler's; None: the default handler's, or, when it has none, those of all handlers.
        default_handler: preferred without a handler.
        is_for_all: those of all handlers in any case.
        only_name: other references of the same images stay, as with docker; else they go too, as in CRI.
    """

    handler: str | None
    default_handler: str
    is_for_all: bool = False
    only_name: bool = False

    def chosen(self, images: set[tuple[str, str]]) -> list[tuple[str, str]]:
        """Of the images under a reference, by id and handler, those that are meant, in the order of their removal."""
        if self.is_for_all:
            return sorted(images, key=lambda image: (image[1], image[0]))
        wanted = self.default_handler if self.handler is None else self.handler
        found = sorted(image for image in images if image[1] == wanted)
        return sorted(images) if not found and self.handler is None else found


def doomed_keys(
    metadata: MetadataStore, texts: Iterable[str], rule: RemovalRule
) -> dict[str, tuple[tuple[str, str], ...]]:
    """As doomed(), for all at once of several texts that are references in the store, without digests.

    Args:
        metadata: the records.
        texts: any names; those that aren't such references are missing from the result.
        rule: whose records they mean.

    Returns:
        (reference, handler) of the records by text.

    Raises:
        StoreCorruptError: the index of image ids lacks a record.
    """
    named: dict[str, set[tuple[str, str]]] = {}

    def _look_up(references: Iterable[str]) -> None:
        for reference, handler, image_id in metadata.images.find_ids(set(references)):
            named.setdefault(reference, set()).add((image_id, handler))

    references = {text: text for text in texts if "@" not in text}
    _look_up(references)
    # A text that is a record's reference needs no parsing; parse the others.
    for text in references.keys() - named.keys():
        try:
            references[text] = str(Reference.parse(text))
        except InvalidReferenceError:
            del references[text]
    _look_up(references.values() - named.keys())
    meant = {text: rule.chosen(named[each]) for text, each in references.items() if each in named}
    if rule.only_name:
        return {text: tuple((references[text], owner) for _, owner in images) for text, images in meant.items()}
    keys: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for reference, handler, image_id in metadata.images.find_keys(
        {image for images in meant.values() for image in images}
    ):
        keys.setdefault((image_id, handler), []).append((reference, handler))
    for text, images in meant.items():
        for image_id, handler in images:
            if (references[text], handler) not in keys.get((image_id, handler), ()):
                _check_found(metadata, (references[text], handler), Digest.parse(image_id))
    return {text: tuple(key for image in images for key in keys.get(image, ())) for text, images in meant.items()}


def all_meant(
    records: Collection[tuple[str, str, str]], texts: Iterable[str], rule: RemovalRule
) -> dict[str, tuple[tuple[str, str], ...]] | None:
    """As doomed_keys() without looking anything up, if the texts mean every record of a store, each of them once.

    Args:
        records: reference, handler and image id of every record, in this order.
        texts: any names.
        rule: whose records they mean.

    Returns:
        (reference, handler) of the records by text; None if a text is no reference in canonical form, a record is
        meant by two of them, or one is left.
    """
    images: dict[str, set[tuple[str, str]]] = {}
    keys: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for reference, handler, image_id in records:
        images.setdefault(reference, set()).add((image_id, handler))
        keys.setdefault((reference if rule.only_name else image_id, handler), []).append((reference, handler))
    meant = {}
    for text in texts:
        if "@" in text or (text not in images and _canonical(text) != text):
            return None
        # An image that one text names must not be named by another.
        chosen = [
            keys.pop((text if rule.only_name else image_id, handler), None)
            for image_id, handler in rule.chosen(images.get(text, set()))
        ]
        if None in chosen:
            return None
        meant[text] = tuple(key for each in chosen if each is not None for key in each)
    return None if keys else meant


def drop_hidden(metadata: MetadataStore, keys: Iterable[tuple[str, str]], default_handler: str) -> list[str]:
    """Remove the images of containerd's clients that the removed records hid, in the same transaction.

    Args:
        metadata: where both are.
        keys: (reference, handler) of the records.
        default_handler: whose records go by their references alone.

    Returns:
        Digests of the content that these images held, in text form.
    """
    return metadata.named_images.drop_home(
        [image_name(reference, handler, default_handler) for reference, handler in keys]
    )
