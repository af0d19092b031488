"""Go's durations."""

from __future__ import annotations

import pytest

from imagestore.config.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10.0), ("500ms", 0.5), ("1m30s", 90.0), ("1.5h", 5400.0), ("0", 0.0), ("+2s", 2.0), (".5s", 0.5)],
)
def test_durations_are_read_as_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "s", "-1s", "1s ", "1 s", "1d", "1s\n", "\u0661s", "1e3s", "++1s", "1" * 40 + "s"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)
