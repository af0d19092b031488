"""Output: tables for people, JSON for programs.

Texts from registries, files and users may hold terminal control characters: tables and messages escape them, JSON is
written in ASCII.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from imagestore.util.text import cut
from imagestore.util.text import printable as printable
from imagestore.util.text import size as size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

    from imagestore.config import Finding

_GAP: Final = "   "
#: Rows that are aligned together; so a list of any length is printed as it is read.
_ALIGNED_ROWS: Final = 10_000
# Longer values are cut in tables; JSON has them whole.
_SHOWN: Final = 120


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns under headings, as crictl and kubectl do; a very long list in parts."""
    left = itertools.chain([headings], rows)
    widths = [0] * len(headings)
    while part := list(itertools.islice(left, _ALIGNED_ROWS)):
        columns = [[printable(cell) for cell in column] for column in zip(*part, strict=True)]
        widths = [max(width, *map(len, column)) for width, column in zip(widths, columns, strict=True)]
        # One template and one write for all of them.
        line = _GAP.join(f"{{:{width}}}" for width in widths).format
        print("\n".join([line(*cells).rstrip() for cells in zip(*columns, strict=True)]))


def fits(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table's lines fit the terminal; anything fits a file or a pipe."""
    if not sys.stdout.isatty():
        return True
    widths = (max(len(printable(cell)) for cell in column) for column in zip(headings, *rows, strict=True))
    return sum(widths) + len(_GAP) * (len(headings) - 1) <= shutil.get_terminal_size().columns


def room(cells: Iterable[Sequence[str]]) -> int:
    """Characters that a further column may have next to these cells of each line, on the terminal."""
    taken = max((sum(len(cell) + len(_GAP) for cell in line) for line in cells), default=0)
    return shutil.get_terminal_size().columns - taken


def shortened(value: object) -> str:
    """A value for a table: texts as they are, others as JSON, long ones cut."""
    return cut(value if isinstance(value, str) else json.dumps(value), _SHOWN)


def dump_json(value: Any) -> None:
    """Print one JSON document, indented, in ASCII, with a newline; a list of its members may be an iterator."""
    if not (isinstance(value, dict) and any(isinstance(each, Iterator) for each in value.values())):
        print(_as_json(value))
        return
    opening = "{"
    for name, member in value.items():
        print(f"{opening}\n  {_as_json(name)}: ", end="")
        opening = ","
        if not isinstance(member, Iterator):
            print(_as_json(member, "  "), end="")
            continue
        bracket = "["
        for each in member:
            print(f"{bracket}\n    {_as_json(each, '    ')}", end="")
            bracket = ","
        print("[]" if bracket == "[" else "\n  ]", end="")
    print("\n}")


def _as_json(value: object, indent: str = "") -> str:
    # A text of JSON holds no line break, so each one is between two lines.
    return json.dumps(value, indent=2, ensure_ascii=True).replace("\n", f"\n{indent}")


def show(output: str, value: object, lines: Iterable[str]) -> None:
    """Print a result: as JSON, or the lines for people."""
    if output == "json":
        dump_json(value)
        return
    for line in lines:
        print(printable(line))


def write_raw(raw: bytes) -> None:
    """Write bytes to standard output as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()


def print_findings(findings: Iterable[Finding]) -> None:
    """Print what is wrong with a configuration, a line for each finding and its hint below."""
    for each in findings:
        print(f"{each.severity.value}: {printable(str(each))}")
        if each.hint:
            print(f"  hint: {printable(each.hint)}")


def is_terminal(stream: TextIO) -> bool:
    """Whether rows can be drawn in place."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class StandardError:
    """Standard error as it is at the moment: bars take its place while they are drawn."""

    def write(self, text: str) -> object:
        """Write to it."""
        return sys.stderr.write(text)

    def flush(self) -> None:
        """Flush it."""
        sys.stderr.flush()
