"""Bars: rows in place on a terminal, below what else is written; drawn once elsewhere."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import struct
import sys
import termios
import threading
from typing import TYPE_CHECKING

import pytest

from imagestore import Descriptor, Digest
from imagestore.cli import progress
from imagestore.cli.render import StandardError
from imagestore.events import BlobAdvanced, BlobDone, BlobStarted, BlobVerifying, Noticed

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.events import Observer

LAYERS = [
    Descriptor("application/vnd.oci.image.layer.v1.tar+gzip", Digest.of(str(number).encode()), 1000)
    for number in range(5)
]
BACK = re.compile(r"\x1b\[([0-9]+)F\x1b\[J")


def pull(observer: Observer) -> None:
    for layer in LAYERS:
        observer(BlobStarted(layer, 0))
    observer(BlobAdvanced(LAYERS[0].digest, 500))
    observer(Noticed("half of it"))
    observer(BlobDone(LAYERS[1], 1000))


def drawn(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[Observer], None], *, columns: int = 100, height: int = 24
) -> list[str]:
    """What stands on a terminal in the end, each drawing as soon as there is something new."""
    monkeypatch.setattr("imagestore.cli.bars._PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))
    parts: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:
            pass  # how the other end's close looks here

    reader = threading.Thread(target=read)
    reader.start()
    with open(theirs, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        with progress.observer("auto") as observer:
            work(observer)
    reader.join(60)
    os.close(ours)
    return shown(b"".join(parts).decode().replace("\r\n", "\n"))


def shown(text: str) -> list[str]:
    lines = [""]
    for part in re.split(r"(\x1b\[[0-9]+F\x1b\[J|\n)", text):
        if found := BACK.fullmatch(part):
            lines[-1 - int(found[1]) :] = [""]
        elif part == "\n":
            lines.append("")
        else:
            lines[-1] += part
    assert "\x1b" not in "".join(lines)
    return lines[:-1]


def test_rows_are_drawn_in_place_and_other_events_stand_above(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, pull)
    assert lines[0] == "note: half of it"
    assert re.fullmatch(r"total +\[=======                 \] 1.46KiB/4.88KiB.*", lines[1])
    assert re.fullmatch(rf"layer {LAYERS[0].digest.short} +\[============ +\] 500B/1000B", lines[2])
    assert re.fullmatch(rf"layer {LAYERS[1].digest.short}: done +\[={{24}}\] 1000B/1000B", lines[3])
    assert len(lines) == 7


@pytest.mark.parametrize("columns", [1, 20, 40, 59])
def test_no_line_is_as_wide_as_the_terminal_and_no_drawing_as_high(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    lines = drawn(monkeypatch, pull, columns=columns, height=4)
    assert lines[0] == "note: half of it"
    assert len(lines) == 4  # the total, and two rows
    assert max(map(len, lines[1:])) < max(columns, 5)
    assert not any("[" in line for line in lines)


def test_a_terminal_that_does_not_say_its_size_has_80_by_24(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, pull, columns=0, height=0)
    assert len(lines) == 7
    assert 60 <= max(map(len, lines)) < 80


@pytest.mark.parametrize("height", [1, 2])
def test_a_terminal_that_has_room_for_one_row_shows_the_total(monkeypatch: pytest.MonkeyPatch, height: int) -> None:
    lines = drawn(monkeypatch, pull, height=height)
    assert [line.split()[0] for line in lines] == ["note:", "total"]


def test_rows_that_are_done_make_room_first(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, pull, height=6)
    assert len(lines) == 6
    assert LAYERS[1].digest.short not in "".join(lines)


def test_what_others_write_stands_above_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.StreamHandler(StandardError())

    def work(observer: Observer) -> None:
        observer(BlobStarted(LAYERS[0], 0))
        sys.stderr.write("a warning of ")
        observer(BlobVerifying(LAYERS[0]))
        sys.stderr.write("two parts\nand")
        sys.stderr.write(" begun")
        handler.handle(logging.makeLogRecord({"msg": "; logged"}))

    lines = drawn(monkeypatch, work)
    assert lines[0] == "a warning of two parts"
    assert lines[-2].startswith("total")
    assert lines[-1].startswith(f"layer {LAYERS[0].digest.short}: verifying")
    assert lines[1:-2] == ["and begun; logged"]


def test_a_blob_that_goes_on_counts_what_this_command_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(observer: Observer) -> None:
        monkeypatch.setattr("imagestore.cli.bars._LEAST_SECONDS", -1.0)
        observer(BlobStarted(LAYERS[0], 400))

    (_, row) = drawn(monkeypatch, work)
    assert row.endswith("400B/1000B")
    assert "/s" not in row


@pytest.mark.parametrize("terminal", ["none", "dumb"])
def test_without_a_terminal_that_can_do_it_events_are_lines(monkeypatch: pytest.MonkeyPatch, terminal: str) -> None:
    class Dumb(io.StringIO):
        def isatty(self) -> bool:
            return terminal == "dumb"

    stream = Dumb()
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.observer("auto") as observer:
        pull(observer)
    assert stream.getvalue().splitlines() == ["note: half of it", f"layer {LAYERS[1].digest.short}: fetched 1000B"]


def test_bars_without_a_terminal_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.observer("bar") as observer:
        pull(observer)
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert [line.split()[0] for line in lines] == ["note:", "total", *["layer"] * 5]


def test_a_reader_that_left_stops_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setenv("TERM", "xterm")
    with progress.observer("bar") as observer:
        pull(observer)
