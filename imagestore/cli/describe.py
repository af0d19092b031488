"""Images, platforms and handlers as JSON values, whose names are stable for programs, and as texts of tables."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import imagestore.platforms as platforms
from imagestore.cli import render
from imagestore.errors import UnsupportedError
from imagestore.util.text import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Set

    from imagestore.config import Finding, HandlerPlatform
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.select import Verdict
    from imagestore.platforms import Platform
    from imagestore.store.image import Image
    from imagestore.store.maintenance.usage import StoreUsage


#: Of the year 9999, the last that RFC 3339 can say.
_LAST_SECOND: Final = 253402300799


def platform(value: Platform) -> dict[str, Any]:
    """The members as the OCI image-spec names them, and the text form."""
    members: dict[str, Any] = {"os": value.os, "architecture": value.architecture}
    if value.variant:
        members["variant"] = value.variant
    if value.os_version:
        members["os.version"] = value.os_version
    if value.os_features:
        members["os.features"] = list(value.os_features)
    return {**members, "text": platforms.format_all(value)}


_MARKS: Final = {0: "CHOSEN", 1: "2nd", 2: "3rd"}


def verdict(value: Verdict) -> str:
    """An entry's verdict as a cell of a matrix: its rank among those that fit, or the rule that refused it."""
    return str(value.rule) if value.rank is None else _MARKS.get(value.rank, f"{value.rank + 1}th")


def platform_or_none(value: Platform | None) -> str:
    """An entry's platform as a matrix shows it."""
    return "none stated" if value is None else platforms.format_all(value)


def members(value: Platform) -> Iterator[tuple[str, str]]:
    """The members of a platform that are set, with their values for people."""
    for member in fields(value):
        found = getattr(value, member.name)
        if found:
            yield member.name, found if isinstance(found, str) else ", ".join(found)


def origin(wanted: HandlerPlatform) -> str:
    """Where the members of a handler's platform come from, lines of one file together."""
    lines: dict[str, list[str]] = {}
    for each in wanted.origin.values():
        place, _, line = each.rpartition(":")
        lines.setdefault(place or each, []).extend([line] if place else [])
    return "; ".join(f"{place}:{','.join(sorted(set(found)))}" if found else place for place, found in lines.items())


def handler(resolved: HandlerPlatform) -> dict[str, Any]:
    """A runtime handler with its platform."""
    return {
        "runtimeHandler": resolved.handler.name,
        "runtimeType": resolved.handler.runtime_type,
        "isolation": None if resolved.handler.isolation is None else resolved.handler.isolation.value,
        "snapshotter": resolved.handler.snapshotter,
        "wantedPlatform": platforms.format_all(resolved.platform),
        "source": resolved.source.value,
        "declared": resolved.is_declared,
        "origin": dict(resolved.origin),
    }


def finding(found: Finding) -> dict[str, Any]:
    """A fault of a configuration."""
    return {
        "severity": found.severity.value,
        "file": found.location.file,
        "line": found.location.line or None,
        "key": found.key,
        "text": found.text,
        "hint": found.hint,
        "mend": found.hint,  # the name before, for programs that read it
    }


def key(reference: str, handler: str) -> dict[str, Any]:
    """The names of one record."""
    return {"reference": reference, "runtimeHandler": handler}


def keys(values: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """The names of several records."""
    return [key(*each) for each in values]


def image(value: Image, pins: Set[str]) -> dict[str, Any]:
    """One record; ``pins`` are the references that the configuration pins."""
    record = value.record
    return {
        **key(record.reference, record.handler),
        "id": str(record.image_id),
        "platform": platform(record.platform),
        "wantedPlatform": record.wanted,
        "target": record.target.members(),
        "manifest": record.manifest.members(),
        "size": record.content_size,
        "labels": dict(record.labels),
        "warnings": list(record.warnings),
        "createdAt": time(record.created_at),
        "updatedAt": time(record.updated_at),
        "pinned": record.is_pinned or record.reference in pins,
    }


def image_in_full(value: Image, pins: Set[str]) -> dict[str, Any]:
    """One record with its config and its layers' files; where the content is in a bucket, layers have no files."""
    config = value.config_if_any
    diff_ids = config.diff_ids if config is not None else ()
    layers: list[dict[str, Any]] = [layer.members() for layer in value.layers]
    with contextlib.suppress(UnsupportedError):
        for layer, path in zip(layers, value.layer_paths, strict=True):
            layer["path"] = str(path)
    for layer, diff_id in zip(layers, diff_ids, strict=False):
        layer["diffId"] = str(diff_id)
    return {
        **image(value, pins),
        "layers": layers,
        "config": None if config is None else {"created": config.created, **config.settings},
    }


def referrer(value: Descriptor) -> dict[str, Any]:
    """A document that refers to an image."""
    return {**value.members(), "artifactType": value.artifact_type, "annotations": dict(value.annotations)}


#: Of the table of images.
IMAGE_HEADINGS: Final = ("IMAGE", "TAG", "RUNTIME HANDLER", "PLATFORM", "IMAGE ID", "SIZE")


def facts(shown: Mapping[str, Any], references: Iterable[str], layers: Iterable[str]) -> list[tuple[str, str]]:
    """An image (see image_in_full) as lines of a table; members that a CRI server doesn't have are null."""
    return [
        *(("reference", each) for each in references),
        ("runtime handler", shown["runtimeHandler"] or "-"),
        ("image id", shown["id"]),
        ("platform", (shown["platform"] or {}).get("text", "-")),
        ("wanted platform", str(shown["wantedPlatform"] or "-")),
        ("target", pointer(shown["target"])),
        ("manifest", pointer(shown["manifest"])),
        ("size", size(shown["size"])),
        ("updated", shown["updatedAt"] or "-"),
        *((name.lower(), render.shortened(value)) for name, value in (shown["config"] or {}).items() if value),
        *(("warning", str(each)) for each in shown["warnings"] or ()),
        *(("layer", each) for each in layers),
    ]


def pointer(value: object) -> str:
    """A descriptor from outside in a line of a table; ``-`` if there is none.

    >>> pointer({"digest": "sha256:1", "mediaType": "text/plain"}), pointer(None)
    ('sha256:1 (text/plain)', '-')
    """
    match value:
        case {"digest": str(digest), "mediaType": str(media_type)}:
            return f"{digest} ({media_type})"
    return "-"


def time(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 in UTC; after the year 9999, its last second.

    >>> time(0.25), time(1e300)
    ('1970-01-01T00:00:00.250Z', '9999-12-31T23:59:59.000Z')
    """
    moment = datetime.fromtimestamp(min(seconds, _LAST_SECOND), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def minute(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 in UTC, without seconds; for tables."""
    return f"{time(seconds)[:16]}Z"


def sizes(usage: StoreUsage) -> list[tuple[str, str]]:
    """What takes space in a store, and how much; for tables."""
    linked = [("of it linked elsewhere too", size(usage.linked_bytes))] if usage.linked_bytes else []
    return [
        ("content of images", size(usage.kept_bytes)),
        ("content of no image", size(usage.other_bytes)),
        *linked,
        (f"unfinished ({usage.ingests})", size(usage.ingest_bytes)),
        ("records", size(usage.metadata_bytes)),
    ]


_HUB: Final = "docker.io/"
_OFFICIAL: Final = "library/"
# A name of this length might be an image id, which has a long form only.
_ID_LENGTH: Final = 64


def familiar(reference: str) -> tuple[str, str]:
    """Name and tag (or shortened digest) of a reference, as Docker's tools show it; what is no reference unchanged.

    >>> familiar("docker.io/library/python:3")
    ('python', '3')
    """
    name, colon, tag = reference.rpartition(":")
    if colon and "/" not in tag and "@" not in name:
        short = _short(name)
        if short:
            return short, tag
    # Other names are parsed by the whole grammar, which takes several times as long.
    from imagestore.oci.reference import Reference

    try:
        parsed = Reference.parse(reference)
    except ValueError:
        return reference or "<none>", "<none>"
    tag = parsed.tag or "<none>"
    return parsed.familiar_name, tag if parsed.digest is None else f"{tag}@{parsed.digest.short}"


def _short(name: str) -> str:
    """The short form of a simple name; empty for others."""
    if not name.startswith(_HUB):
        return name
    path = name[len(_HUB) :]
    first, _, rest = path.partition("/")
    if first == _OFFICIAL[:-1] and "/" not in rest:
        return rest if len(rest) != _ID_LENGTH else ""
    return path if rest and "." not in first and ":" not in first and first != "localhost" else ""
