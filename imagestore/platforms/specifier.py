"""Reads the text form of a platform; ``platform`` writes it.

::

    specifier = os-part | architecture | os-part "/" architecture [ "/" variant ]
    os-part   = NAME [ "(" [ VERSION ] { "+" FEATURE } ")" ]

NAME takes ASCII letters, digits, ``_`` and ``-``; architecture and variant also ``.``; VERSION and FEATURE also ``.``
and ``%XX`` for anything else. One part alone is an operating system or an architecture, and the host gives the rest.
This is the grammar of containerd's platform library (version 1.0.0-rc.5), with its rules on which variant a short
form means.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import imagestore.platforms.host as host_module
from imagestore.errors import InvalidPlatformError
from imagestore.platforms.normalize import (
    KNOWN_ARCHITECTURES,
    KNOWN_OPERATING_SYSTEMS,
    normalize_architecture,
    normalize_os,
)
from imagestore.platforms.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Iterable

_OS_PART: Final = re.compile(r"([A-Za-z0-9_-]+)(?:\(([A-Za-z0-9_.%-]*)((?:\+[A-Za-z0-9_.%-]+)*)\))?")
_OS_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_PART: Final = re.compile(r"[A-Za-z0-9_.-]+")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Lone surrogates: how undecodable bytes of a %XX escape arrive from the decoder.
_UNDECODABLE: Final = re.compile("[\udc80-\udcff]")
_FORM: Final = "write os, architecture, os/architecture or os/architecture/variant, for example linux/arm/v7"
_SHOWN: Final = 200


def parse(text: str, *, host: Platform | None = None) -> Platform:
    """Read a specifier.

    Args:
        text: for example ``linux/arm64`` or ``windows(10.0.17763+win32k)/amd64``.
        host: gives what a single part leaves out; this machine by default.

    Raises:
        InvalidPlatformError: names the text, the position and the rule.

    >>> parse("linux/armhf")
    Platform(os='linux', architecture='arm', variant='', os_version='', os_features=())
    >>> parse("windows(10.0.17763)/amd64").os_version
    '10.0.17763'
    """
    wildcard = text.find("*")
    if wildcard >= 0:
        raise _refusal(text, wildcard, "wildcards are not supported")
    # One more than allowed, so that a text of slashes isn't split into thousands of parts.
    parts = text.split("/", 3)
    found = _OS_PART.fullmatch(parts[0])
    if found is None:
        raise _refusal(text, *_os_part_fault(parts[0]))
    _check_tail(text, parts)
    name, version, features = found.groups(default="")
    os_version = _unescape(text, version)
    os_features = tuple(_unescape(text, feature) for feature in features.split("+")[1:])
    os_name = normalize_os(name)
    if len(parts) == 1:
        return _complete(text, os_name, os_version, os_features, host if host is not None else host_module.detect())
    architecture, variant = normalize_architecture(parts[1], parts[2] if len(parts) == 3 else "")
    if len(parts) == 2 and (architecture, variant) == ("arm", "v7"):
        variant = ""
    if len(parts) == 3 and architecture == "arm64" and not variant:
        variant = "v8"
    return Platform(os_name, architecture, variant, os_version, os_features)


def parse_all(texts: Iterable[str], *, host: Platform | None = None) -> tuple[Platform, ...]:
    """Read several specifiers.

    Raises:
        InvalidPlatformError: for the first bad one, with its place in the list.

    >>> [platform.architecture for platform in parse_all(["linux/amd64", "linux/s390x"])]
    ['amd64', 's390x']
    """
    platforms = []
    for number, text in enumerate(texts, start=1):
        try:
            platforms.append(parse(text, host=host))
        except InvalidPlatformError as error:
            raise InvalidPlatformError(f"{error} (item {number} of the list)", hint=error.hint) from error
    return tuple(platforms)


def _complete(text: str, os_name: str, os_version: str, os_features: tuple[str, ...], host: Platform) -> Platform:
    """A specifier of one part: the host gives what is missing."""
    host_architecture, host_variant = normalize_architecture(host.architecture, host.variant)
    if os_name in KNOWN_OPERATING_SYSTEMS:
        variant = host_variant if host_architecture == "arm" and host_variant != "v7" else ""
        return Platform(os_name, host_architecture, variant, os_version, os_features)
    # The raw text: brackets make it no architecture.
    architecture, variant = normalize_architecture(text, "")
    if architecture in KNOWN_ARCHITECTURES:
        return Platform(host.os, architecture, "" if (architecture, variant) == ("arm", "v7") else variant)
    raise _refusal(text, 0, "neither a known operating system nor a known architecture")


def _check_tail(text: str, parts: list[str]) -> None:
    position = len(parts[0]) + 1
    for number, part in enumerate(parts[1:], start=2):
        if number == 4:
            raise _refusal(text, position, "more than three parts")
        found = _PART.match(part)
        length = 0 if found is None else found.end()
        if length < len(part):
            raise _refusal(text, position + length, f"{part[length]!r} can't stand in {_part_name(number)}")
        if not part:
            raise _refusal(text, position, f"{_part_name(number)} is empty")
        position += len(part) + 1


def _part_name(number: int) -> str:
    return "the architecture" if number == 2 else "the variant"


def _os_part_fault(part: str) -> tuple[int, str]:
    """Position and rule for a first part that doesn't fit the grammar."""
    name = _OS_NAME.match(part)
    if name is None:
        return 0, f"{part[0]!r} can't start a name" if part else "the first part is empty"
    end = name.end()
    if part[end] != "(":
        return end, f"{part[end]!r} can't stand in a name"
    if ")" not in part:
        return end, "the bracket is not closed"
    return end, "expected (version+feature+…) with letters, digits, _ . - and %XX in version and features"


def _unescape(text: str, option: str) -> str:
    if "%" not in option:
        return option
    bad = _BAD_ESCAPE.search(option)
    if bad is not None:
        raise _refusal(text, text.find(option) + bad.start(), "% must be followed by two hex digits")
    pieces = option.split("%")
    raw = pieces[0].encode() + b"".join(bytes((int(piece[:2], 16),)) + piece[2:].encode() for piece in pieces[1:])
    # Bytes that aren't UTF-8 become U+FFFD one by one, as they do when Go writes such a text into a document.
    return _UNDECODABLE.sub("\ufffd", raw.decode("utf-8", "surrogateescape"))


def _refusal(text: str, position: int, rule: str) -> InvalidPlatformError:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return InvalidPlatformError(f"platform {shown!r}: at position {position}: {rule}", hint=_FORM)
