"""Where a handler's platform is declared, and which key with which value would change it.

A hint names a key that is there, or one that can be added there: a ``runtime_platforms`` text has no OSVersion.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore import platforms
from imagestore.config.findings import dotted, shorten
from imagestore.config.location import BUILT_IN
from imagestore.platforms.normalize import normalize_architecture

if TYPE_CHECKING:
    from imagestore.config.handlers import GuestPlatform, RuntimeHandler
    from imagestore.config.location import Location
    from imagestore.platforms.spec import Platform

_KEYS: Final = {
    "os": "OS",
    "architecture": "Architecture",
    "variant": "Variant",
    "os_version": "OSVersion",
    "os_features": "OSFeatures",
}


def place(handler: RuntimeHandler, member: str) -> tuple[Location, str]:
    """Location and key of what declares a member of the platform; the handler itself when nothing does."""
    path = ["runtimes", handler.name]
    guest = handler.guest_platform
    if guest is not None:
        location = guest.locations.get(member)
        path.append("guest_platform")
        return (guest.location, dotted(path)) if location is None else (location, dotted([*path, _KEYS[member]]))
    if handler.runtime_platform is not None:
        return handler.runtime_platform.location, dotted(["runtime_platforms", handler.name, "platform"])
    return handler.location, dotted(path)


def assignment(handler: RuntimeHandler, now: Platform, wanted: Platform) -> str:
    """What to write where the handler's platform is declared, so that it becomes the wanted one.

    Args:
        handler: as configured.
        now: its platform.
        wanted: what it should be.

    Returns:
        Keys and values as TOML writes them.
    """
    if handler.guest_platform is not None:
        return _changes(handler.guest_platform, now, wanted)
    if handler.runtime_platform is not None:
        return f"platform = {json.dumps(shorten(platforms.format_all(wanted)))}"
    return f"guest_platform = {{ {_members(None, wanted)} }}"


def sentence(handler: RuntimeHandler, now: Platform, wanted: Platform) -> str:
    """The same with the place where to write it.

    >>> from imagestore.config.handlers import RuntimeHandler
    >>> from imagestore.platforms.spec import Platform
    >>> sentence(RuntimeHandler("kata"), Platform("linux", "amd64"), Platform("linux", "arm64"))
    'give runtimes.kata a guest_platform with OS = "linux", Architecture = "arm64"'
    """
    table, name = ["runtimes", handler.name], handler.name
    if handler.guest_platform is not None:
        changed = next((member for member in _KEYS if getattr(now, member) != getattr(wanted, member)), "os")
        location = place(handler, changed)[0]
        changes = _changes(handler.guest_platform, now, wanted)
        return f"set {changes} in {dotted([*table, 'guest_platform'])} ({location})"
    if handler.runtime_platform is not None:
        path = dotted(["runtime_platforms", name])
        return f"set {path}.{assignment(handler, now, wanted)} ({handler.runtime_platform.location})"
    where = "" if handler.location == BUILT_IN else f" ({handler.location})"
    return f"give {dotted(table)} a guest_platform with {_members(None, wanted)}{where}"


def _changes(guest: GuestPlatform, now: Platform, wanted: Platform) -> str:
    """Members that differ. A new variant comes with its architecture where the host's, or a name's own, would win."""
    changed = _members(now, wanted)
    given = guest.architecture or (wanted.architecture if wanted.variant else "")
    if now.variant == wanted.variant or (given and normalize_architecture(given, wanted.variant)[1] == wanted.variant):
        return changed
    return _members(replace(now, architecture=""), wanted)


def _members(now: Platform | None, wanted: Platform) -> str:
    """Members that differ; those of a new table all, since it replaces the host's platform."""
    return ", ".join(
        f"{key} = {_value(getattr(wanted, member))}"
        for member, key in _KEYS.items()
        if (getattr(wanted, member) if now is None else getattr(now, member) != getattr(wanted, member))
    )


def _value(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return json.dumps(shorten(value))
    return "[" + ", ".join(json.dumps(shorten(each)) for each in value) + "]"
