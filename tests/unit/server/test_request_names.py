"""Calls are named as their callers named them, also those answered from memory."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from imagestore.rpc.context import given_request_id, request_id
from imagestore.server.calls import CallWatch, ServicerContext
from imagestore.server.numbers import NoNumbers


class Context:
    """What came with a call, and what goes out after it."""

    def __init__(self, *metadata: tuple[str, str | bytes]) -> None:
        self.metadata = metadata
        self.trailing: tuple[Any, ...] = ()

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.metadata

    def set_trailing_metadata(self, metadata: tuple[Any, ...]) -> None:
        self.trailing = metadata


@pytest.mark.parametrize("name", ["", "a b", "a\nb", b"mine", "x" * 129, "\u00e9"])
def test_names_that_could_break_a_line_are_none(name: str | bytes) -> None:
    assert given_request_id([("x-request-id", name)]) == ""
    assert len(request_id([("x-request-id", name)])) == 16


@pytest.mark.parametrize(
    ("metadata", "name"), [([("a", "b"), ("x-request-id", "mine")], "mine"), ([("authorization", "secret")], "")]
)
def test_an_answer_from_memory_has_its_callers_name(
    metadata: list[tuple[str, str | bytes]], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "imagestore.server")
    context = Context(*metadata)
    CallWatch(NoNumbers()).answered("/t.T/Echo", cast("ServicerContext", context), 0.1)
    assert context.trailing == ((("x-request-id", name),) if name else ())
    (record,) = [each for each in caplog.records if each.name != "asyncio"]
    assert getattr(record, "request_id", "") == name
    assert "secret" not in str(vars(record))
