"""Progress of a pull on standard error: bars on a terminal, plain lines elsewhere, or JSON lines for programs."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from imagestore.cli.render import is_terminal, printable, size
from imagestore.events import (
    BlobAwaited,
    BlobDone,
    BlobStarted,
    BlobUploaded,
    LayerUnpacked,
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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.events import Event, Observer


_WRITING: Final = threading.Lock()


@contextlib.contextmanager
def observer(style: str) -> Iterator[Observer]:
    """An observer of a style: ``auto`` (bars on a terminal, else lines), ``bar``, ``plain``, ``json`` or ``none``."""
    if style == "auto":
        style = "bar" if is_terminal(sys.stderr) else "plain"
    if style == "bar":
        from imagestore.cli.bars import Bars

        with Bars(sentence, _label) as bars:
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
