"""Image records as rows: the one place that knows the order of columns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from imagestore.descriptor import Descriptor
from imagestore.digest import Digest
from imagestore.metadata.api import ImageRecord
from imagestore.platforms.spec import Platform

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
MARKS: Final = ", ".join("?" for _ in _NAMES)


def from_record(record: ImageRecord, *, created_at: float, updated_at: float) -> tuple[str | int | float, ...]:
    """A record's values in the order of COLUMNS; its roots have a table of their own."""
    return (
        record.reference,
        record.handler,
        _descriptor_text(record.target),
        _descriptor_text(record.manifest),
        str(record.image_id),
        _platform_text(record.platform),
        record.wanted,
        record.content_size,
        json.dumps(dict(record.labels), sort_keys=True),
        json.dumps(list(record.warnings)),
        created_at,
        updated_at,
        int(record.is_pinned),
        record.used_at,
    )


def to_record(row: Sequence[Any]) -> ImageRecord:
    """A record from a row of COLUMNS followed by a JSON list of its roots."""
    reference, handler, target, manifest, image_id, platform, wanted, size, labels, warnings, *rest = row
    created_at, updated_at, pinned, used_at, roots = rest
    return ImageRecord(
        reference=reference,
        handler=handler,
        target=_descriptor(target),
        manifest=_descriptor(manifest),
        image_id=Digest.parse(image_id),
        platform=_platform(platform),
        wanted=wanted,
        roots=tuple(Digest.parse(text) for text in json.loads(roots)),
        content_size=size,
        labels=json.loads(labels),
        warnings=tuple(json.loads(warnings)),
        created_at=created_at,
        updated_at=updated_at,
        is_pinned=bool(pinned),
        used_at=used_at,
    )


def _descriptor_text(descriptor: Descriptor) -> str:
    return json.dumps([descriptor.media_type, str(descriptor.digest), descriptor.size])


def _descriptor(text: str) -> Descriptor:
    media_type, digest, size = json.loads(text)
    return Descriptor(media_type, Digest.parse(digest), size)


def _platform_text(platform: Platform) -> str:
    return json.dumps(
        [platform.os, platform.architecture, platform.variant, platform.os_version, list(platform.os_features)]
    )


def _platform(text: str) -> Platform:
    os, architecture, variant, os_version, os_features = json.loads(text)
    return Platform(os, architecture, variant, os_version, tuple(os_features))
