"""Which Content-Range fields make sense (RFC 9110, section 14.4)."""

from __future__ import annotations

import pytest

from imagestore.registry.exchange import Headers
from imagestore.registry.ranges import ContentRange, Verdict, judge, parse_content_range


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes 0-0/1", ContentRange(0, 0, 1)),
        (" bytes 5-9/10 ", ContentRange(5, 9, 10)),
        ("bytes 5-9/*", ContentRange(5, 9, None)),
        ("bytes 5-10/10", None),
        ("bytes 5-11/10", None),
        ("bytes 5-4/10", None),
        ("bytes */10", None),
        ("bytes 5-/10", None),
        ("bytes -5/10", None),
        ("bytes 5-9", None),
        ("items 5-9/10", None),
        ("bytes 5-9/10, 5-9/10", None),
        ("", None),
    ],
)
def test_a_range_ends_within_the_whole_and_not_before_it_begins(text: str, expected: ContentRange | None) -> None:
    assert parse_content_range(text) == expected


@pytest.mark.parametrize(
    ("length", "verdict"), [("60", Verdict.PART), ("", Verdict.PART), ("100", Verdict.RESTART), ("59", Verdict.RESTART)]
)
def test_a_part_must_be_as_long_as_it_says(length: str, verdict: Verdict) -> None:
    fields = [("Content-Range", "bytes 40-99/100"), *([("Content-Length", length)] if length else [])]
    assert judge(206, Headers(tuple(fields)), offset=40, size=100, has_range=True) is verdict
