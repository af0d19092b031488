"""Reads ``os(version+feature)/architecture/variant`` literally, for builders.

The kit must build platforms exactly as a test spells them, also odd ones, and stay independent of the parser that it
helps to test; so nothing is normalised here and no host fills gaps.
"""

from __future__ import annotations

import re
from typing import Final

from imagestore.errors import InvalidPlatformError
from imagestore.platforms.spec import Platform

_TEXT: Final = re.compile(r"([^/()]+)(?:\(([^()+]*)((?:\+[^()+]+)*)\))?/([^/]+)(?:/([^/]+))?")


def read_platform(text: str) -> Platform:
    """Take a platform's text apart.

    >>> read_platform("windows(10.0.20348.2402+win32k)/amd64").os_features
    ('win32k',)

    Raises:
        InvalidPlatformError: not of this form.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise InvalidPlatformError(
            f"platform {text!r}: expected os/architecture, os/architecture/variant or os(version)/architecture"
        )
    system, version, features, architecture, variant = found.groups()
    names = tuple(features.split("+")[1:]) if features else ()
    return Platform(system, architecture, variant or "", version or "", names)
