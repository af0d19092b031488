"""Durations: Go's ``time.Duration`` (ParseDuration, String), as containerd's and Kubernetes' files write them.

The command line takes days and weeks too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from typing import Self

NANOSECONDS: Final = 1_000_000_000
_MILLISECOND: Final = 1_000_000
_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # micro sign
    "\u03bcs": 1_000,  # Greek mu
    "ms": _MILLISECOND,
    "s": NANOSECONDS,
    "m": 60 * NANOSECONDS,
    "h": 3600 * NANOSECONDS,
}
_PART: Final = re.compile("([0-9]*)(\\.[0-9]*)?([^0-9.]*)")
_LONGEST: Final = 2**63 - 1
_MAX_TEXT: Final = 100
_DAYS_TOO: Final = {**_UNITS, "d": 24 * _UNITS["h"], "w": 7 * 24 * _UNITS["h"]}


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A span of time in whole nanoseconds, as Go and Kubernetes write it.

    >>> str(Duration.parse("90s")), str(Duration.parse("1.5h")), str(Duration(0))
    ('1m30s', '1h30m0s', '0s')
    """

    nanoseconds: int = 0

    @classmethod
    def of_seconds(cls, seconds: float) -> Self:
        """From seconds; parts below a nanosecond are rounded."""
        return cls(round(seconds * NANOSECONDS))

    @classmethod
    def parse(cls, text: str, *, has_days: bool = False) -> Self:
        """Read Go's form: an optional sign, then decimals with units (ns, us, ms, s, m, h), or a bare ``0``.

        With ``has_days``, d (24 h) and w (7 d) are units too.

        Raises:
            InvalidInputError: it has another form, for example no unit.
        """
        units = _DAYS_TOO if has_days else _UNITS
        example = "90s, 30m, 12h or 7d" if has_days else "90s, 500ms or 1h30m"
        shown = repr(text[:_MAX_TEXT])
        rest = text[1:] if text[:1] in ("+", "-") else text
        if rest == "0":
            return cls(0)
        if not rest or len(text) > _MAX_TEXT:
            raise InvalidInputError(f"duration {shown}: expected for example {example}")
        total = 0
        while rest:
            found = _PART.match(rest)
            whole, fraction, unit = (found[1], found[2] or "", found[3]) if found else ("", "", "")
            if not whole and len(fraction) < 2:
                raise InvalidInputError(f"duration {shown}: expected a number before {rest[:8]!r}")
            if unit not in units:
                what = f"unknown unit {unit!r}" if unit else "a unit is missing"
                raise InvalidInputError(
                    f"duration {shown}: {what}; expected for example {example}",
                    hint=f"units are {', '.join(filter(str.isascii, units))}",
                )
            scale = units[unit]
            total += int(whole or "0") * scale + _part_of(fraction[1:], scale)
            rest = rest[len(whole) + len(fraction) + len(unit) :]
        if total > _LONGEST + (text[0] == "-"):
            raise InvalidInputError(f"duration {shown}: longer than 292 years")
        return cls(-total if text[0] == "-" else total)

    @property
    def seconds(self) -> float:
        """In seconds."""
        return self.nanoseconds / NANOSECONDS

    def truncated_to_milliseconds(self) -> Self:
        """Towards zero, as event texts show it."""
        whole = abs(self.nanoseconds) // _MILLISECOND * _MILLISECOND
        return type(self)(whole if self.nanoseconds >= 0 else -whole)

    def __str__(self) -> str:
        sign = "-" if self.nanoseconds < 0 else ""
        span = abs(self.nanoseconds)
        if span == 0:
            return "0s"
        if span < NANOSECONDS:
            name, scale = next(
                (name, scale) for name, scale in (("ms", _MILLISECOND), ("\u00b5s", 1_000), ("ns", 1)) if span >= scale
            )
            return f"{sign}{_decimal(span, scale)}{name}"
        minutes, rest = divmod(span, 60 * NANOSECONDS)
        text = f"{_decimal(rest, NANOSECONDS)}s"
        if minutes:
            hours, minutes = divmod(minutes, 60)
            text = (f"{hours}h" if hours else "") + f"{minutes}m{text}"
        return sign + text


def _part_of(digits: str, scale: int) -> int:
    """Nanoseconds of a decimal fraction of a unit, with the digits Go keeps and its floating-point arithmetic."""
    value, power = 0, 1.0
    for digit in digits:
        longer = value * 10 + int(digit)
        if value > _LONGEST // 10 or longer > _LONGEST + 1:
            break
        value, power = longer, power * 10
    return int(float(value) * (scale / power))


def _decimal(value: int, scale: int) -> str:
    whole, rest = divmod(value, scale)
    digits = len(str(scale)) - 1
    fraction = f"{rest:0{digits}d}".rstrip("0") if rest else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
