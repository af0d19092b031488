"""The one renderer: tables for people, JSON for programs.

Whatever came from a registry, a file or a user may hold terminal control characters; tables and messages escape them,
JSON is written in ASCII.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# Control, format (bidirectional marks among them), surrogate, private use, line and paragraph separators.
_UNSAFE: Final = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: str) -> str:
    r"""Escape what a terminal would act on.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii") if unicodedata.category(character) in _UNSAFE else character
        for character in text
    )


def size(byte_count: int) -> str:
    """Bytes for people, in binary units.

    >>> size(0), size(1536), size(5 * 2**30)
    ('0B', '1.50KiB', '5.00GiB')
    """
    value = float(byte_count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            decimals = 2 if value < 10 else 1 if value < 100 else 0
            return f"{byte_count}B" if unit == "B" else f"{value:.{decimals}f}{unit}"
        value /= 1024
    raise AssertionError("unreachable")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, stream: TextIO | None = None) -> None:
    """Print aligned columns under upper-case headings, as crictl and kubectl do."""
    lines = [tuple(headings), *(tuple(printable(cell) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        text = "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(text.rstrip(), file=stream or sys.stdout)


def dump_json(value: Any) -> None:
    """Print one JSON document, indented, in ASCII, with a newline."""
    print(json.dumps(value, indent=2, ensure_ascii=True))
