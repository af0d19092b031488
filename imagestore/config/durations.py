"""Durations as Go writes them: ``10s``, ``1m30s``, ``500ms``."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12})(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")


def parse_duration(text: str) -> float:
    """Seconds of a duration that isn't negative.

    Raises:
        ValueError: it isn't one.

    >>> parse_duration("1m30s"), parse_duration("0")
    (90.0, 0.0)
    """
    if text in ("0", "+0", "-0"):
        return 0.0
    rest = text.removeprefix("+")
    position, seconds = 0, 0.0
    while found := _PART.match(rest, position):
        seconds += float(found.group(1)) * _UNITS[found.group(2)]
        position = found.end()
    if not rest or position != len(rest):
        raise ValueError(f"expected a duration such as 10s or 500ms, got {text[:40]!r}")
    return seconds
