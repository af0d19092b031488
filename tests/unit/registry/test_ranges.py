"""Which Content-Range fields make sense (RFC 9110, section 14.4)."""

from __future__ import annotations

import pytest
from httpx import Headers

from imagestore.registry.blob_sources import ContentRange, Verdict, judge, parse_content_range
from imagestore.registry.transport.messages import parse_length


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


@pytest.mark.parametrize("field", ["bytes 40-100/*", "bytes 40-150/*", "bytes 40-100/101", "bytes 39-99/100"])
def test_a_part_that_goes_beyond_the_blob_is_asked_for_again(field: str) -> None:
    assert judge(206, Headers((("Content-Range", field),)), offset=40, size=100, has_range=True) is Verdict.RESTART


@pytest.mark.parametrize("status", [204, 400, 401, 403, 404, 429, 500, 503])
def test_what_says_nothing_about_ranges_is_a_refusal(status: int) -> None:
    assert judge(status, Headers(), offset=40, size=100, has_range=True) is Verdict.REFUSED


@pytest.mark.parametrize("status", [304, 412, 416, 501])
def test_what_says_something_about_ranges_is_one_where_none_was_sent(status: int) -> None:
    assert judge(status, Headers(), offset=40, size=100, has_range=True) is Verdict.RESTART
    assert judge(status, Headers(), offset=0, size=100, has_range=False) is Verdict.REFUSED


@pytest.mark.parametrize(
    ("text", "length"), [("0", 0), ("100", 100), ("", None), ("100, 100", None), ("100x", None), ("-1", None)]
)
def test_a_length_is_digits_only(text: str, length: int | None) -> None:
    assert parse_length(text) == length
