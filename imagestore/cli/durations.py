"""Durations on the command line: ``90s``, ``30m``, ``12h``, ``7d``, or ``0``.

No other number goes without a unit: whoever writes 7 may mean days, and some of these options remove what is older.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable

_GRAMMAR: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw]?)")
_EXPECTED: Final = "expected a duration such as 90s, 30m, 12h or 7d"
#: What is longer ends after every calendar of ours.
_LONGEST_DAYS: Final = 36525
_LONGEST: Final = _LONGEST_DAYS * 86400.0
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def seconds(text: str) -> float:
    """Read a duration.

    Raises:
        click.BadParameter: it can't be read.

    >>> seconds("1.5h")
    5400.0
    """
    found = _GRAMMAR.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r}: {_EXPECTED}")
    if text == "0":
        return 0.0
    if not found[2]:
        raise click.BadParameter(f"{text!r}: a unit is missing; {_EXPECTED}")
    value = float(found[1]) * _UNITS[found[2]]
    if value > _LONGEST:
        raise click.BadParameter(f"{text!r}: expected at most {_LONGEST_DAYS}d, which are a hundred years")
    return value


def duration_option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """An option that takes a duration and arrives as seconds; None where it has no default and isn't given."""
    return click.option(*names, type=seconds, metavar="DURATION", **settings)
