"""Calls are named as their callers named them."""

from __future__ import annotations

import pytest

from imagestore.server.logs import request_id


@pytest.mark.parametrize("name", ["", "a b", "a\nb", b"mine", "x" * 129, "\u00e9"])
def test_names_that_could_break_a_line_are_none(name: str | bytes) -> None:
    assert len(request_id([("x-request-id", name)])) == 16


def test_a_callers_name_is_taken() -> None:
    assert request_id([("a", "b"), ("x-request-id", "mine")]) == "mine"
    assert "secret" not in request_id([("authorization", "secret")])
