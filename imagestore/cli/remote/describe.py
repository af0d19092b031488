"""A server's images as the JSON values of a local store; members that CRI doesn't have are null.

The verbose status of our own server has nearly all members; containerd's has the image config. Both are texts from
outside, so every member is checked before use.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from imagestore.cli import describe, render
from imagestore.oci.reference import Reference
from imagestore.platforms import Platform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.cri.model import ImageDetails, ServedImage

_ID: Final = re.compile(r"(?:sha256:)?[a-f0-9]{4,64}")


def names(image: ServedImage) -> tuple[str, ...]:
    """What to show an image under: its tags; its digests when it has none; at least one text."""
    return image.repo_tags or image.repo_digests or ("",)


def names_meant(image: ServedImage, name: str) -> tuple[str, ...]:
    """What to show an image under that was asked for by a name: its tag or its repository's, as in a local store."""
    wanted = _reference(name)
    if wanted is None:
        return names(image)
    if str(wanted) in image.repo_tags:
        return (str(wanted),)
    same = tuple(tag for tag in image.repo_tags if wanted.digest and tag.startswith(f"{wanted.name}:"))
    return same or names(image)


def familiar(name: str) -> tuple[str, str]:
    """Name and tag as short as people write them; a text that is no reference unchanged."""
    try:
        return describe.familiar(name)
    except ValueError:
        return name or "<none>", "<none>"


def is_tagged(image: ServedImage, name: str) -> bool:
    """Whether a name is one of the image's tags."""
    wanted = _reference(name)
    return wanted is not None and str(wanted) in image.repo_tags


def fits(image: ServedImage, name: str) -> bool:
    """Whether an image id, the beginning of one or a digest, alone or behind a name, means this image."""
    if _ID.fullmatch(name) and image.id.removeprefix("sha256:").startswith(name.removeprefix("sha256:")):
        return True
    wanted = _reference(name)
    if wanted is not None and wanted.digest is not None:
        return str(wanted.with_digest(wanted.digest)) in image.repo_digests
    return any(each.endswith(f"@{name}") for each in image.repo_digests)


def _reference(name: str) -> Reference | None:
    """A name as a reference; None for what isn't one."""
    try:
        return Reference.parse(name)
    except ValueError:
        return None


def image(value: ServedImage, name: str) -> dict[str, Any]:
    """One name of one image."""
    return {
        "reference": name or None,
        "runtimeHandler": value.spec.runtime_handler,
        "id": value.id,
        "platform": None,
        "wantedPlatform": None,
        "target": None,
        "manifest": None,
        "size": value.size,
        "labels": None,
        "warnings": None,
        "createdAt": None,
        "updatedAt": None,
        "pinned": value.is_pinned,
    }


def image_in_full(details: ImageDetails, name: str) -> dict[str, Any]:
    """One image with its verbose status; ``info`` has the server's texts."""
    info = {key: parsed(text) for key, text in details.info.items()}
    own, containerds = _table(info.get("imagestore")), _table(info.get("info"))
    config = _table(containerds.get("imageSpec"))
    shown = image(details.image, name)
    for key in ("wantedPlatform", "target", "manifest"):
        shown[key] = own.get(key)
    warnings = own.get("warnings")
    shown["warnings"] = warnings if isinstance(warnings, list) else None
    for key in ("createdAt", "updatedAt"):
        moment = own.get(key)
        shown[key] = describe.time(moment) if isinstance(moment, float) and 0 <= moment < 2**33 else None
    return {
        **shown,
        "platform": _platform(config),
        "layers": own.get("layers"),
        "config": {"created": config.get("created"), **_table(config.get("config"))} if config else None,
        "info": info,
    }


def _platform(config: Mapping[str, Any]) -> dict[str, Any] | None:
    members = [config.get(key, "") for key in ("os", "architecture", "variant", "os.version")]
    if not all(isinstance(member, str) for member in members) or not members[0]:
        return None
    return describe.platform(Platform(*members))


def pointer(value: object) -> str:
    """A descriptor in a line of a table; ``-`` if the server has none.

    >>> pointer({"digest": "sha256:1", "mediaType": "text/plain"}), pointer(None)
    ('sha256:1 (text/plain)', '-')
    """
    members = _table(value)
    digest, media_type = members.get("digest"), members.get("mediaType")
    return f"{digest} ({media_type})" if isinstance(digest, str) and isinstance(media_type, str) else "-"


def layer_lines(value: object) -> list[str]:
    """Layers in lines of a table; a server doesn't say where their files are."""
    layers = map(_table, value) if isinstance(value, list) else ()
    sizes = ((each.get("digest"), each.get("size")) for each in layers)
    return [
        f"{digest} ({render.size(size)})"
        for digest, size in sizes
        if isinstance(digest, str) and type(size) is int and 0 <= size < 2**63
    ]


def parsed(text: str) -> Any:
    """A text of an info map. As crictl does it: what begins like an object is one, anything else is a text."""
    if not text.startswith("{"):
        return text.strip('"')
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
