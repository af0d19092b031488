"""Image records as rows: the one place that knows the order of columns."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final

from imagestore.metadata.records import ImageRecord
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.reference import Reference
from imagestore.platforms.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES: Final = (
    "reference",
    "handler",
    "target",
    "manifest",
    "image_id",
    "platform",
    "wanted",
    "content_size",
    "labels",
    "warnings",
    "created_at",
    "updated_at",
    "pinned",
    "used_at",
)
COLUMNS: Final = ", ".join(_NAMES)
# What SQLite can count to, and no time and no size comes near.
_MOST: Final = 2**62
_NO_LABELS: Final = "{}"
_NO_WARNINGS: Final = "[]"
MARKS: Final = ", ".join("?" for _ in _NAMES)


def from_record(record: ImageRecord, *, created_at: float, updated_at: float) -> tuple[str | int | float, ...]:
    """A record's values in the order of COLUMNS; its roots have a table of their own."""
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
        created_at,
        updated_at,
        int(record.is_pinned),
        record.used_at,
    )


def to_record(row: Sequence[Any]) -> ImageRecord:
    """A record from a row of COLUMNS followed by a JSON list of its roots.

    Raises:
        ValueError, TypeError, KeyError: something in it isn't what from_record() writes.
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


def checked(record: ImageRecord) -> ImageRecord:
    """A record that didn't come from the database, where the tables see to it that members are what they should be.

    Raises:
        ValueError: it isn't one that they take.
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
