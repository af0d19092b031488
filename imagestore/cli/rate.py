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


class Rate(click.ParamType):
    """Bytes per second: a number, or one with a unit (``10MiB``, ``10MiB/s``, ``1.5MB``)."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the text of the option."""
        rate = value if isinstance(value, int) else parse_rate(str(value))
        if rate is None or rate < 1:
            self.fail(f"{value!r}: expected bytes per second above zero, for example 10MiB or 10MiB/s", param, ctx)
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
        type=Rate(),
        metavar="RATE",
        help="Receive no more than this for the pull altogether, for example 10MiB/s.",
    )
    return option(function)
