"""Log lines with fields, for people (text) or for programs (one JSON object a line).

The library's loggers pass fields in ``extra``; a filter adds the request's id. Text from outside is escaped. Only the
server installs handlers; embedders keep their own.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import uuid
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from imagestore.util.logins import without_logins
from imagestore.util.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import TextIO

log = logging.getLogger(__name__)

# Attributes that every record has; all others are fields of the line.
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Loggers whose debug lines show whole header lists or repeat our own lines.
_QUIET: Final = ("httpx", "httpcore", "asyncio", "grpc", "hpack")

#: Metadata key by which a caller names its request; the answer's trailing metadata repeats it.
REQUEST_ID_KEY: Final = "x-request-id"
REQUEST_ID: Final[ContextVar[str]] = ContextVar("imagestore_request_id", default="")
# Characters that can't break a log line or a header.
_GRAMMAR: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def request_id(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The request id in a request's metadata, or a new one if there is no usable one.

    >>> request_id([("x-request-id", "pod-7/pull")])
    'pod-7/pull'
    """
    for key, value in metadata or ():
        if key == REQUEST_ID_KEY and isinstance(value, str) and _GRAMMAR.fullmatch(value):
            return value
    return uuid.uuid4().hex[:16]


def install(style: str, level: str, stream: TextIO | None = None) -> None:
    """Send the process's log to a stream (by default standard error), in style ``text`` or ``json``."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    handler.addFilter(_name_request)
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def take_over() -> None:
    """Log errors and warnings that Python itself would write to standard error, where they are not JSON lines.

    Only for a process that does nothing but serve, since it replaces the interpreter's hooks.
    """

    def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.critical("ended by a bug", exc_info=(kind, error, trace))

    def _uncaught_in_thread(given: threading.ExceptHookArgs) -> None:
        # The value may be None late in the interpreter's shutdown.
        error = given.exc_value or given.exc_type()
        name = given.thread.name if given.thread is not None else ""
        log.error("a thread ended in a bug", exc_info=(given.exc_type, error, given.exc_traceback), extra={"by": name})

    def _unraisable(given: sys.UnraisableHookArgs) -> None:
        error = given.exc_value or given.exc_type()
        fields = {"by": repr(given.object)}
        log.error("an error with no caller", exc_info=(given.exc_type, error, given.exc_traceback), extra=fields)

    sys.excepthook, threading.excepthook, sys.unraisablehook = _uncaught, _uncaught_in_thread, _unraisable
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # else a failed write of a line would print a traceback


def _name_request(record: logging.LogRecord) -> bool:
    name = REQUEST_ID.get()
    if name and not hasattr(record, "request_id"):
        record.request_id = name
    return True


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _PLAIN}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_logins(record.getMessage()),
            **{key: _hidden(value) for key, value in _fields(record).items()},
        }
        if record.exc_info:
            line["exception"] = without_logins(self.formatException(record.exc_info))
        return json.dumps(line)


class TextLines(logging.Formatter):
    """Time, level, message, then the fields as ``key=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, or several with an exception."""
        words = [_time(record), record.levelname, _plain(record.getMessage())]
        words += [f"{key}={_shown(value)}" for key, value in _fields(record).items()]
        text = " ".join(words)
        if not record.exc_info:
            return text
        # Indented, so that no text in an exception looks like a line of its own.
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join([text, *(f"  {_plain(line)}" for line in trace)])


def _hidden(value: object) -> object:
    """A field's value for JSON, all texts in it without logins."""
    match value:
        case str():
            return without_logins(value)
        case None | bool() | int() | float():
            return value
        case dict():
            return {str(_hidden(str(key))): _hidden(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_hidden(each) for each in value]
    return without_logins(str(value))


def _plain(text: str) -> str:
    """A text of ours or of a library, for a log."""
    return printable(without_logins(text))


def _shown(value: object) -> str:
    text = _plain(str(value))
    return json.dumps(text) if " " in text or '"' in text or not text else text
