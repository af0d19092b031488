"""Records as rows of a database: the order of columns, and what both adapters compute from rows."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import LeaseNotFoundError
from imagestore.metadata.records import ContentRecord, Holder, HolderKind, ImageRecord, Lease, NamedImage
from imagestore.oci import gc_labels
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import ContentTerms, LeaseTerms
from imagestore.oci.reference import Reference
from imagestore.platforms.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

IMAGE_COLUMNS: Final = (
    "reference, handler, target, manifest, image_id, platform, wanted, content_size, labels, warnings, created_at,"
    " updated_at, pinned, used_at"
)
LEASE_COLUMNS: Final = "id, created_at, expires_at, flat, labels, namespace"
NAMED_IMAGE_COLUMNS: Final = "namespace, name, media_type, digest, size, annotations, labels, created_at, updated_at"
CONTENT_COLUMNS: Final = "digest, size, labels, created_at, updated_at"
#: Times of use are kept to the minute, so that a busy image costs one write a minute.
USE_SECONDS: Final = 60.0
#: Lifetime of an unfinished write that no lease holds, as in containerd.
INGEST_SECONDS: Final = 24 * 3600.0
# What SQLite can count to, and no time and no size comes near.
_MOST: Final = 2**62
_NO_LABELS: Final = "{}"
_NO_WARNINGS: Final = "[]"


def image_values(record: ImageRecord) -> tuple[str | int | float, ...]:
    """A record's values in the order of IMAGE_COLUMNS; its roots have a table of their own."""
    target = _descriptor_text(record.target)
    return (
        record.reference,
        record.handler,
        target,
        target if record.manifest == record.target else _descriptor_text(record.manifest),
        str(record.image_id),
        _platform_text(record.platform),
        record.wanted,
        record.content_size,
        json.dumps(dict(record.labels), sort_keys=True) if record.labels else _NO_LABELS,
        json.dumps(list(record.warnings)) if record.warnings else _NO_WARNINGS,
        record.created_at,
        record.updated_at,
        int(record.is_pinned),
        record.used_at,
    )


def image_roots(record: ImageRecord) -> list[tuple[str, bool]]:
    """What a record holds: each digest, and whether a label names it."""
    return [*((str(digest), False) for digest in record.roots), *((str(digest), True) for digest in record.labelled)]


def stored_image(
    record: ImageRecord, *, created_at: float, updated_at: float, is_pinned: bool, used_at: float
) -> ImageRecord:
    """A record as it reads back: descriptors in records have no platform and no annotations."""
    return replace(
        record,
        target=_bare(record.target),
        manifest=_bare(record.manifest),
        created_at=created_at,
        updated_at=updated_at,
        is_pinned=is_pinned,
        used_at=used_at,
    )


def image_record(row: Sequence[Any]) -> ImageRecord:
    """A record from a row of IMAGE_COLUMNS followed by a JSON list of its roots.

    Raises:
        ValueError, TypeError, KeyError: something in it isn't what image_values() writes.
    """
    reference, handler, target, manifest, image_id, platform, wanted, size, labels, warnings, *rest = row
    created_at, updated_at, pinned, used_at, roots = rest
    points_at = _descriptor(target)
    # By position: lists of thousands are read, and names cost a third more. The usual values need no parser.
    return ImageRecord(
        reference,
        handler,
        points_at,
        points_at if manifest == target else _descriptor(manifest),
        Digest.parse(image_id),
        _platform(platform),
        wanted,
        tuple(map(Digest.parse, json.loads(roots))),
        size,
        {} if labels == _NO_LABELS else json.loads(labels),
        () if warnings == _NO_WARNINGS else tuple(json.loads(warnings)),
        created_at,
        updated_at,
        bool(pinned),
        used_at,
    )


def image_condition(
    *,
    reference: str | None,
    handler: str | None,
    image_id_prefix: str | None,
    after: tuple[str, str] | None,
) -> tuple[str, dict[str, str]]:
    """The SQL condition of Images.find(), and the values of its parameters.

    >>> image_condition(reference="r", handler=None, image_id_prefix=None, after=None)
    ('scope = :scope AND reference = :reference', {'reference': 'r'})
    """
    given = {"reference": reference, "handler": handler}
    values = {name: value for name, value in given.items() if value is not None}
    conditions = ["scope = :scope", *(f"{name} = :{name}" for name in values)]
    if image_id_prefix is not None:
        # "g" is above every hex digit, so this is the range of texts with that beginning, found by the index.
        conditions.append("image_id >= :first AND image_id < :behind")
        values |= {"first": image_id_prefix, "behind": image_id_prefix + "g"}
    if after is not None:
        conditions.append("(reference, handler) > (:after_reference, :after_handler)")
        values |= {"after_reference": after[0], "after_handler": after[1]}
    return " AND ".join(conditions), values


def checked_image(record: ImageRecord) -> ImageRecord:
    """A record that didn't come from the database, whose tables check the types of members.

    Raises:
        ValueError: the tables wouldn't take it.
    """
    platform, descriptors = record.platform, (record.target, record.manifest)
    texts: tuple[Any, ...] = (
        *(record.reference, record.handler, record.wanted, *record.warnings, *record.labels, *record.labels.values()),
        *(platform.os, platform.architecture, platform.variant, platform.os_version, *platform.os_features),
        *(each.media_type for each in descriptors),
    )
    # Nothing is of its type yet.
    sizes: tuple[Any, ...] = (record.content_size, *(each.size for each in descriptors))
    numbers: tuple[Any, ...] = (record.content_size, record.created_at, record.updated_at, record.used_at)
    is_right = (
        all(isinstance(each, str) for each in texts)
        and all(isinstance(each, int | float) and 0 <= each < _MOST for each in numbers)
        and all(isinstance(each, int) for each in sizes)
        and record.handler
    )
    if not is_right:
        raise ValueError(f"no record of an image: {record.reference!r}")
    Reference.parse(record.reference)
    return record


def lease_end(labels: Mapping[str, str]) -> float | None:
    """When a lease with these labels ends, if they say so.

    As in containerd a lease whose gc.expire can't be read stays until it is deleted.
    """
    return LeaseTerms.of(labels).expires_at if gc_labels.EXPIRE in labels else None


def lease(row: Sequence[Any]) -> Lease:
    """A lease from a row of LEASE_COLUMNS."""
    lease_id, created_at, expires_at, flat, labels, namespace = row
    return Lease(lease_id, created_at, expires_at, bool(flat), json.loads(labels), namespace)


def no_lease(lease_id: str) -> LeaseNotFoundError:
    """The error of a lease that is gone."""
    return LeaseNotFoundError(f"lease {lease_id!r} does not exist or was released")


def leased_records(rows: Iterable[Sequence[Any]]) -> frozenset[str]:
    """``reference@handler`` of the records that leases name, from rows of name and handler."""
    # A name may have a handler behind it already.
    return frozenset(text for name, handler in rows for text in (name, f"{name}@{handler}"))


def named_image_values(image: NamedImage) -> tuple[str | int | float, ...]:
    """A named image's values in the order of NAMED_IMAGE_COLUMNS, followed by when it expires.

    Raises:
        InvalidInputError: a label is too long.
    """
    labels = gc_labels.checked(image.labels)
    return (
        image.namespace,
        image.name,
        image.target.media_type,
        str(image.target.digest),
        image.target.size,
        json.dumps(dict(image.annotations), sort_keys=True),
        json.dumps(labels, sort_keys=True),
        image.created_at,
        image.updated_at,
        LeaseTerms.of(labels).expires_at,
    )


def named_image_roots(image: NamedImage) -> dict[str, bool]:
    """What a named image holds, and whether only a label names it: the rest stays when the label is removed."""
    held = {str(digest): True for digest in ContentTerms.of(gc_labels.checked(image.labels)).references}
    return held | {str(digest): False for digest in (image.target.digest, *image.also_keeps)}


def named_image(row: Sequence[Any], also_keeps: Iterable[str]) -> NamedImage:
    """A named image from a row of NAMED_IMAGE_COLUMNS."""
    namespace, name, media_type, digest, size, annotations, labels, created_at, updated_at = row
    return NamedImage(
        namespace,
        name,
        Descriptor(media_type, Digest.parse(digest), size),
        json.loads(annotations),
        json.loads(labels),
        created_at,
        updated_at,
        tuple(map(Digest.parse, also_keeps)),
    )


def content_record(row: Sequence[Any]) -> ContentRecord:
    """A content record from a row of CONTENT_COLUMNS."""
    digest, size, labels, created_at, updated_at = row
    return ContentRecord(Digest.parse(digest), size, json.loads(labels), created_at, updated_at)


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as JSON.

    Raises:
        InvalidInputError: a label is too long.
    """
    return json.dumps(gc_labels.checked(labels), sort_keys=True)


def by_parent(edges: Iterable[Sequence[str]]) -> dict[str, list[str]]:
    """Children by parent, from rows of parent and child."""
    found: dict[str, list[str]] = {}
    for parent, child in edges:
        found.setdefault(parent, []).append(child)
    return found


def holders(
    images: Iterable[Sequence[Any]],
    leases: Iterable[Sequence[Any]],
    labels: Iterable[Sequence[Any]],
    named_images: Iterable[Sequence[Any]],
    owners: Iterable[Sequence[Any]],
) -> tuple[Holder, ...]:
    """What keeps some content, from rows of (reference, handler), (lease, is flat), (label), (name), and (owner)."""
    return (
        *(Holder(HolderKind.IMAGE, reference, handler) for reference, handler in images),
        *(Holder(HolderKind.FLAT_LEASE if flat else HolderKind.LEASE, name) for name, flat in leases),
        *(Holder(HolderKind.LABEL, key) for (key,) in labels if key.startswith(gc_labels.ROOT)),
        *(Holder(HolderKind.NAMED_IMAGE, name) for (name,) in named_images),
        *(Holder(HolderKind.NAMESPACE, owner) for (owner,) in owners),
    )


def _bare(descriptor: Descriptor) -> Descriptor:
    return Descriptor(descriptor.media_type, descriptor.digest, descriptor.size)


def _descriptor_text(descriptor: Descriptor) -> str:
    return json.dumps([descriptor.media_type, str(descriptor.digest), descriptor.size])


def _descriptor(text: str) -> Descriptor:
    media_type, digest, size = json.loads(text)
    return Descriptor(media_type, Digest.parse(digest), size)


@functools.lru_cache(maxsize=256)
def _platform_text(platform: Platform) -> str:
    return json.dumps(
        [platform.os, platform.architecture, platform.variant, platform.os_version, list(platform.os_features)]
    )


# A node has images of a few platforms only.
@functools.lru_cache(maxsize=256)
def _platform(text: str) -> Platform:
    os, architecture, variant, os_version, os_features = json.loads(text)
    return Platform(os, architecture, variant, os_version, tuple(os_features))
