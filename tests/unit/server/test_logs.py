"""Lines of the log: one for each message, whatever it says."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from imagestore.rpc.context import REQUEST_ID
from imagestore.server import logs


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
def test_programs_get_an_object_a_line() -> None:
    first, second = (json.loads(line) for line in written("json").splitlines())
    assert (first["level"], first["message"], first["path"], first["request_id"]) == (
        *("info", "hello", "a b\n\x1b[31m"),
        "me",
    )
    assert second["exception"].endswith("forged\x1b[31m")
