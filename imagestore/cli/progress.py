"""Progress of a pull on standard error: bars on a terminal, plain lines elsewhere, or JSON lines for programs."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from imagestore.cli.render import printable, size
from imagestore.events import (
    BlobAdvanced,
    BlobAwaited,
    BlobDone,
    BlobStarted,
    BlobUploaded,
    BlobUploading,
    BlobVerifying,
    LayerUnpacked,
    LayerUnpacking,
    Noticed,
    PartAdvanced,
    Resolved,
    Selected,
    SourceSwitched,
    Waiting,
    ignore,
)
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.media_types import Kind
from imagestore.util.durations import Duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

    from imagestore.events import Event, Observer


_WRITING: Final = threading.Lock()
#: Columns of a terminal below which rows have no bar.
_LEAST_FOR_BARS: Final = 60
#: No rate is shown before.
_LEAST_SECONDS: Final = 0.5


@contextlib.contextmanager
def observer(style: str) -> Iterator[Observer]:
    """An observer of a style: ``auto`` (bars on a terminal, else lines), ``bar``, ``plain``, ``json`` or ``none``."""
    if style == "auto":
        style = "bar" if sys.stderr.isatty() else "plain"
    if style == "bar":
        with _bars() as bars:
            yield bars
    else:
        yield {"plain": _print_line, "json": _print_json, "none": ignore}[style]


def _print_line(event: Event) -> None:
    text = sentence(event)
    if text:
        _write(printable(text))


def _write(line: str) -> None:
    """Write one line at once, since events come from several threads; a reader that left doesn't stop the work."""
    with _WRITING, contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _print_json(event: Event) -> None:
    members: dict[str, Any] = {"event": type(event).__name__}
    for name in event.__dataclass_fields__:
        value = getattr(event, name)
        if isinstance(value, Descriptor):
            members[name] = value.members()
        else:
            members[name] = value if isinstance(value, str | int | float) else str(value)
    _write(json.dumps(members))


def sentence(event: Event) -> str:
    """An event in words; empty for those that only bars show."""
    match event:
        case Resolved():
            return f"{event.reference}: resolved to {event.target.digest}"
        case Selected():
            return f"{event.handler} wants {event.platform}: manifest {event.manifest.digest} ({event.reason})"
        case BlobAwaited():
            return f"{_label(event.descriptor)}: waiting for the pull that fetches it already"
        case BlobStarted() if event.offset:
            return f"{_label(event.descriptor)}: going on at {size(event.offset)} of {size(event.descriptor.size)}"
        case BlobDone() if event.fetched_bytes:
            return f"{_label(event.descriptor)}: fetched {size(event.fetched_bytes)}"
        case BlobDone():
            return f"{_label(event.descriptor)}: here already"
        case BlobUploaded() if event.mounted_from:
            return f"{_label(event.descriptor)}: mounted from {event.mounted_from}"
        case BlobUploaded() if event.sent:
            return f"{_label(event.descriptor)}: sent {size(event.sent)}"
        case BlobUploaded():
            return f"{_label(event.descriptor)}: there already"
        case LayerUnpacked():
            return f"{_label(event.descriptor)}: unpacked {event.entries} entries"
        case Waiting():
            return f"{_about(event.host, event.reason)} (waiting {event.seconds:.1f} s)"
        case SourceSwitched():
            return f"{_about(event.failed_host, event.reason)}; trying {event.next_host}"
        case Noticed():
            return f"note: {event.message}"
        case PartAdvanced() if event.total is None and event.status:
            return f"{event.part}: {event.status}" if event.part else event.status
        case _:
            return ""


def _about(host: str, reason: str) -> str:
    """A reason with its host in front, unless it names it already."""
    return reason if host in reason else f"{host}: {reason}"


def _label(descriptor: Descriptor) -> str:
    return f"{'blob' if descriptor.kind is Kind.OTHER else descriptor.kind.value} {descriptor.digest.short}"


@contextlib.contextmanager
def _bars() -> Iterator[Observer]:
    # rich costs 90 ms to load; only a terminal pays.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Column

    console = Console(stderr=True)
    label, amount = "{task.description}", "{task.fields[amount]}"
    is_wide = console.width >= _LEAST_FOR_BARS
    columns: list[ProgressColumn] = [TextColumn(f"{label} {amount}", markup=False, table_column=Column(no_wrap=True))]
    if is_wide:
        columns = [TextColumn(label, markup=False), BarColumn(bar_width=24), TextColumn(amount)]
    with Progress(*columns, console=console) as progress:
        yield _Bars(progress, has_states=is_wide)


class _Bars:
    """Draws a row for each blob and one for the total; other events are lines above the rows.

    Args:
        progress: draws.
        has_states: rows show a blob's state, such as "verifying".
    """

    def __init__(self, progress: Progress, *, has_states: bool) -> None:
        self._progress = progress
        self._has_states = has_states
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()
        #: Bytes to receive, bytes received, and bytes that were there when the pull began; by digest.
        self._sizes: dict[str, int] = {}
        self._received: dict[str, int] = {}
        self._offsets: dict[str, int] = {}
        self._began_at = time.monotonic()
        self._total = progress.add_task("total", total=None, amount="", visible=False)

    def __call__(self, event: Event) -> None:
        match event:
            case BlobStarted():
                self._start(event.descriptor, event.offset)
            case BlobAdvanced():
                self._move(str(event.digest), event.received)
            case BlobVerifying():
                self._describe(event.descriptor, "verifying")
            case LayerUnpacking():
                self._start(event.descriptor, 0)
                self._move(str(event.descriptor.digest), event.read)
            case BlobUploading():
                self._start(event.descriptor, 0)
                self._move(str(event.descriptor.digest), event.sent)
            case BlobUploaded() if event.sent:
                self._move(str(event.descriptor.digest), event.descriptor.size)
                self._describe(event.descriptor, "sent")
            case LayerUnpacked():
                self._describe(event.descriptor, "unpacked")
            case BlobDone() if event.fetched_bytes:
                self._move(str(event.descriptor.digest), event.descriptor.size)
                self._describe(event.descriptor, "done")
            case _:
                text = sentence(event)
                if text:
                    self._progress.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def _start(self, descriptor: Descriptor, offset: int) -> None:
        key, label = str(descriptor.digest), printable(_label(descriptor))
        with self._lock:
            if key not in self._tasks:
                self._tasks[key] = self._progress.add_task(label, total=descriptor.size, amount="")
                self._sizes[key], self._offsets[key] = descriptor.size, offset
        self._move(key, offset)

    def _describe(self, descriptor: Descriptor, state: str) -> None:
        with self._lock:
            task = self._tasks.get(str(descriptor.digest))
        if task is not None and self._has_states:
            self._progress.update(task, description=printable(f"{_label(descriptor)}: {state}"))

    def _move(self, key: str, completed: int) -> None:
        with self._lock:
            task = self._tasks.get(key)
            if task is None:
                return
            self._received[key] = completed
            received, total = sum(self._received.values()), sum(self._sizes.values())
            fresh = received - sum(self._offsets.values())
        self._progress.update(task, completed=completed, amount=f"{size(completed)}/{size(self._sizes[key])}")
        amount = f"{size(received)}/{size(total)}{_pace(fresh, total - received, time.monotonic() - self._began_at)}"
        self._progress.update(self._total, completed=received, total=total, amount=amount, visible=True)


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
