"""``--limit-rate``: bytes per second as people write them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

_RATE: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,3}))? ?([kmgt]?i?b?)(?:/s)?", re.IGNORECASE | re.ASCII)
_POWERS: Final = "kmgt"


def _read(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    rate = parse_rate(value)
    if not rate:
        raise click.BadParameter(f"{value!r}: expected bytes per second above zero, for example 10MiB or 10MiB/s")
    return rate


def parse_rate(text: str) -> int | None:
    """Bytes per second; None when the text is no rate. KiB is 1024 bytes, kB (or k) 1000.

    >>> parse_rate("10MiB/s"), parse_rate("1.5MB"), parse_rate("500"), parse_rate("fast")
    (10485760, 1500000, 500, None)
    """
    found = _RATE.fullmatch(text.strip())
    if found is None:
        return None
    unit = found[3].lower().removesuffix("b")
    if unit == "i":
        return None
    factor = (1024 if unit.endswith("i") else 1000) ** (_POWERS.index(unit[0]) + 1) if unit else 1
    thousandths = int(found[1]) * 1000 + int((found[2] or "").ljust(3, "0"))
    return thousandths * factor // 1000


def limit_rate_option(function: F) -> F:
    """``--limit-rate``; arrives as ``limit_rate``."""
    option = click.option(
        "--limit-rate",
        callback=_read,
        metavar="RATE",
        help="Receive no more than this for the pull altogether, for example 10MiB/s.",
    )
    return option(function)
