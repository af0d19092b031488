"""Lines of the log: one for each message, whatever it says."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

from imagestore.server import logs
from imagestore.server.logs import REQUEST_ID


@pytest.fixture
def root_logger() -> Iterator[None]:
    """As it was, afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers, root.level = handlers, level


def written(style: str) -> str:
    """What three messages become."""
    stream = io.StringIO()
    logs.install(style, "info", stream)
    log, token = logging.getLogger("imagestore.test"), REQUEST_ID.set("me")
    try:
        log.info("hello", extra={"path": "a b\n\x1b[31m", "empty": ""})
        raise ValueError("first\n2026-01-01T00:00:00.000Z INFO forged\x1b[31m")
    except ValueError as error:
        log.error("a call ended in a bug", exc_info=error)
    finally:
        REQUEST_ID.reset(token)
    log.debug("not at this level")
    return stream.getvalue()


@pytest.mark.usefixtures("root_logger")
def test_nothing_from_outside_looks_like_a_line_of_its_own() -> None:
    first, second, *trace = written("text").splitlines()
    assert first.endswith(r'INFO hello path="a b\\n\\x1b[31m" empty="" request_id=me')
    assert second.endswith("ERROR a call ended in a bug request_id=me")
    assert all(line.startswith("  ") and line.isprintable() for line in trace)
    assert trace[-1] == r"  2026-01-01T00:00:00.000Z INFO forged\x1b[31m"


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("style", ["text", "json"])
def test_a_library_that_logs_an_address_logs_no_login(style: str) -> None:
    stream = io.StringIO()
    logs.install(style, "info", stream)
    log, address = logging.getLogger("exporter"), "https://user:top@wo/rd@collector.example:4317"
    try:
        raise ValueError(f"can't read {address}")
    except ValueError:
        log.exception("can't export to %s", address, extra={"to": address})
    assert stream.getvalue().count("https://***@collector.example:4317") == 3
    assert "top" not in stream.getvalue().replace("test_", "")


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("style", ["text", "json"])
def test_no_field_of_a_line_has_a_login(style: str) -> None:
    stream = io.StringIO()
    logs.install(style, "info", stream)
    login, signed = "https://user:secret@a.example/v2", "https://b.example/blob?X-Amz-Signature=secret"
    fields = {"list": [login, (signed,)], "table": {login: signed}, "number": 1, "other": Exception(signed)}
    logging.getLogger("imagestore.test").info("%s", signed, extra=fields)
    assert "secret" not in stream.getvalue()
    assert stream.getvalue().count("***") == 6


@pytest.mark.usefixtures("root_logger")
def test_programs_get_an_object_a_line() -> None:
    first, second = (json.loads(line) for line in written("json").splitlines())
    assert (first["level"], first["message"], first["path"], first["request_id"]) == (
        *("info", "hello", "a b\n\x1b[31m"),
        "me",
    )
    assert second["exception"].endswith("forged\x1b[31m")


def thread_with_a_bug() -> None:
    thread = threading.Thread(target=lambda: [][0], name="worker-7")
    thread.start()
    thread.join()


class Unraisable:
    def __del__(self) -> None:
        raise ValueError("nobody hears it")


def unraisable() -> None:
    Unraisable()


def line_that_cannot_be_written() -> None:
    logging.getLogger("imagestore.test").warning("%d", "no number")


@pytest.mark.parametrize(
    ("happen", "message", "words"),
    [
        (thread_with_a_bug, "a thread ended in a bug", "IndexError"),
        (unraisable, "an error with no caller", "nobody hears it"),
        (lambda: sys.excepthook(ValueError, ValueError("told"), None), "ended by a bug", "told"),
        (lambda: warnings.warn("old", stacklevel=1), "", "old"),
        (line_that_cannot_be_written, None, ""),
    ],
)
@pytest.mark.usefixtures("root_logger")
def test_what_python_writes_by_itself_is_an_object_a_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    happen: Callable[[], object],
    message: str | None,
    words: str,
) -> None:
    for owner, name in ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(logging, "raiseExceptions", logging.raiseExceptions)
    stream = io.StringIO()
    logs.install("json", "info", stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.take_over()
        try:
            happen()
        finally:
            logging.captureWarnings(False)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert capsys.readouterr().err == ""
    if message is None:
        assert lines == []
        return
    (line,) = lines
    assert message in line["message"]
    assert words in line.get("exception", line["message"])
