"""Durations on the command line: Go's form, with days and weeks, for example ``90s``, ``12h`` or ``7d``.

A number needs its unit, since some of these options remove what is older: 7 may have been meant as days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.errors import InvalidInputError
from imagestore.util.durations import Duration

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_DAYS: Final = 36525
_LONGEST: Final = Duration.parse(f"{_LONGEST_DAYS}d", has_days=True)


def seconds(text: str) -> float:
    """Read a duration.

    Raises:
        click.BadParameter: it can't be read, or is negative or longer than a hundred years.

    >>> seconds("1.5h")
    5400.0
    """
    try:
        found = Duration.parse(text, has_days=True)
    except InvalidInputError as error:
        raise click.BadParameter(str(error)) from error
    if not Duration() <= found <= _LONGEST:
        raise click.BadParameter(f"{text!r}: expected 0 to {_LONGEST_DAYS}d (a hundred years)")
    return found.seconds


def duration_option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """An option that takes a duration and arrives as seconds; None where it has no default and isn't given."""
    return click.option(*names, type=seconds, metavar="DURATION", **settings)
