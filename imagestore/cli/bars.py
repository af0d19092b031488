"""Bars on a terminal: a row for each blob and one for all, drawn anew in place; what else comes stands above them."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from imagestore.cli.render import is_terminal
from imagestore.events import (
    BlobAdvanced,
    BlobDone,
    BlobStarted,
    BlobUploaded,
    BlobUploading,
    BlobVerifying,
    LayerUnpacked,
    LayerUnpacking,
)
from imagestore.util.durations import Duration
from imagestore.util.text import cut, printable, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from imagestore.events import Event
    from imagestore.oci.descriptor import Descriptor

#: Columns of a terminal below which rows have no bar.
_LEAST_FOR_BARS: Final = 60
_BAR: Final = 24
#: No rate is shown before.
_LEAST_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.1
_DONE: Final = frozenset({"done", "sent", "unpacked"})
#: ECMA-48, CPL and ED: to the beginning of a line above, and clear what is from there on.
_BACK: Final = "\x1b[{}F\x1b[J"


@dataclass(slots=True)
class _Row:
    """A blob: bytes in all, moved, and moved before this command began."""

    label: str
    size: int
    moved: int
    offset: int
    state: str = ""


class Bars:
    """An observer that draws, at most ten times a second, while its block runs; without a terminal once, at the end.

    Args:
        sentence: an event in words; empty for one that only a row shows.
        label: the name of a blob.
    """

    def __init__(self, sentence: Callable[[Event], str], label: Callable[[Descriptor], str]) -> None:
        self._sentence = sentence
        self._label = label
        self._rows: dict[str, _Row] = {}
        # Events come from several threads.
        self._lock = threading.RLock()
        self._stream = sys.stderr
        self._is_live = is_terminal(self._stream)
        self._began_at = self._drawn_at = time.monotonic()
        self._height = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self._is_live:
            # Else a warning of another part of the program would stand in the middle of the rows.
            lines = self._stack.enter_context(contextlib.redirect_stderr(_WholeLines(self.print)))
            self._stack.callback(lines.flush)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        with self._lock:
            self._draw()

    def __call__(self, event: Event) -> None:
        """See Observer."""
        with self._lock:
            if not self._note(event):
                if text := self._sentence(event):
                    self.print(f"{printable(text)}\n")
            elif self._is_live and time.monotonic() - self._drawn_at >= _PAUSE_SECONDS:
                self._draw()

    def print(self, text: str) -> None:
        """Write whole lines above the rows."""
        with self._lock:
            self._draw(text)

    def _note(self, event: Event) -> bool:
        """Take over what a row shows; says whether one does."""
        match event:
            case BlobStarted():
                self._move(event.descriptor, event.offset)
            case BlobAdvanced():
                row = self._rows.get(str(event.digest))
                if row is not None:
                    row.moved = event.received
            case LayerUnpacking():
                self._move(event.descriptor, event.read)
            case BlobUploading():
                self._move(event.descriptor, event.sent)
            case BlobVerifying():
                self._end(event.descriptor, "verifying")
            case BlobUploaded() if event.sent:
                self._end(event.descriptor, "sent")
            case LayerUnpacked():
                self._end(event.descriptor, "unpacked")
            case BlobDone() if event.fetched_bytes:
                self._end(event.descriptor, "done")
            case _:
                return False
        return True

    def _move(self, descriptor: Descriptor, moved: int) -> None:
        row = self._rows.get(str(descriptor.digest))
        if row is None:
            offset = moved if moved < descriptor.size else 0
            row = _Row(printable(self._label(descriptor)), descriptor.size, moved, offset)
            self._rows[str(descriptor.digest)] = row
        row.moved, row.state = moved, ""

    def _end(self, descriptor: Descriptor, state: str) -> None:
        row = self._rows.get(str(descriptor.digest))
        if row is not None:
            row.moved, row.state = row.size, state

    def _draw(self, above: str = "") -> None:
        self._drawn_at = time.monotonic()
        lines: list[str] = []
        if self._is_live or not above:
            columns, height = _terminal_size(self._stream)
            rows = self._shown(height - 1 if self._is_live else len(self._rows) + 1)
            lines = [cut(line, max(columns - 1, 4)) for line in self._lines(rows, is_wide=columns >= _LEAST_FOR_BARS)]
        back = _BACK.format(self._height) if self._height else ""
        # A reader that left doesn't stop the work.
        with contextlib.suppress(OSError):
            self._stream.write(back + above + "".join(f"{line}\n" for line in lines))
            self._stream.flush()
        self._height = len(lines)

    def _shown(self, most: int) -> list[_Row]:
        """The rows that there is room for below the total; those that are done make room first."""
        rows = list(self._rows.values())
        surplus = len(rows) - max(most - 1, 0)
        if surplus > 0:
            going = [row for row in rows if row.state not in _DONE]
            over = [row for row in rows if row.state in _DONE]
            rows = [*over[surplus:], *going][: max(most - 1, 0)]
        return rows

    def _lines(self, rows: Sequence[_Row], *, is_wide: bool) -> list[str]:
        everything = self._rows.values()
        if not everything:
            return []
        moved, total = sum(row.moved for row in everything), sum(row.size for row in everything)
        fresh = moved - sum(row.offset for row in everything)
        pace = _pace(fresh, total - moved, time.monotonic() - self._began_at)
        names = ["total", *(f"{row.label}: {row.state}" if row.state and is_wide else row.label for row in rows)]
        done = [(moved, total), *((row.moved, row.size) for row in rows)]
        # With room for a state, so that the bars stay where they are.
        width = max(len(row.label) for row in everything) + len(": verifying") if is_wide else 0
        lines = []
        for name, (part, whole) in zip(names, done, strict=True):
            bar = f" {_bar(part, whole)}" if is_wide else ""
            lines.append(f"{name:{width}}{bar} {size(part)}/{size(whole)}")
        lines[0] += pace
        return lines


class _WholeLines(io.TextIOBase):
    """Takes the place of a stream, and passes whole lines on."""

    def __init__(self, print_lines: Callable[[str], None]) -> None:
        super().__init__()
        self._print_lines = print_lines
        self._begun = ""

    def write(self, text: str) -> int:
        """See io.TextIOBase."""
        lines, end, rest = (self._begun + text).rpartition("\n")
        self._begun = rest
        if end:
            self._print_lines(lines + end)
        return len(text)

    def flush(self) -> None:
        """See io.TextIOBase: a line that was begun is ended."""
        if self._begun:
            self.write("\n")


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns = lines = 0
    return columns or 80, lines or 24  # zero where the terminal doesn't say it


def _bar(part: int, whole: int) -> str:
    """How much of it is done.

    >>> _bar(1, 2)
    '[============            ]'
    """
    done = _BAR if part >= whole else part * _BAR // whole
    return f"[{'=' * done:{_BAR}}]"


def _pace(fetched: int, left: int, seconds: float) -> str:
    """The rate so far and the time left at it.

    >>> _pace(10 << 20, 20 << 20, 5.0)
    ' 2.00MiB/s 10s left'
    """
    if fetched <= 0 or seconds < _LEAST_SECONDS:
        return ""
    rate = fetched / seconds
    remaining = f" {Duration.of_seconds(round(left / rate))} left" if left else ""
    return f" {size(int(rate))}/s{remaining}"
