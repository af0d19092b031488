"""Reading and writing specifiers: the grammar, its errors, and what a short form means on which host."""

from __future__ import annotations

import pytest

from imagestore.errors import InvalidPlatformError
from imagestore.platforms import Platform, format, format_all, parse, parse_all  # noqa: A004
from tests.support import vectors

AMD64 = Platform("linux", "amd64")
ARM64 = Platform("linux", "arm64", "v8")
ARMV6 = Platform("linux", "arm", "v6")
ARMV7 = Platform("linux", "arm", "v7")
WINDOWS = Platform("windows", "amd64", os_version="10.0.20348")


@pytest.mark.parametrize(
    ("text", "host", "expected"),
    [row for row in vectors.rows("platforms", "parse", "text", "host", "platform") if row[1]],
)
def test_one_part_takes_the_rest_from_the_host(text: str, host: Platform, expected: Platform) -> None:
    assert parse(text, host=host) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [(row[0], row[2]) for row in vectors.rows("platforms", "parse", "text", "host", "platform") if not row[1]],
)
def test_two_and_three_parts_need_no_host(text: str, expected: Platform) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "position", "rule"),
    vectors.rows("platforms", "refuse", "text", "position", "rule"),
)
def test_bad_specifier_names_text_position_and_rule(text: str, position: int, rule: str) -> None:
    with pytest.raises(InvalidPlatformError) as caught:
        parse(text, host=AMD64)
    message = str(caught.value)
    assert message.startswith(f"platform {text!r}: at position {position}: ")
    assert rule in message
    assert caught.value.hint


def test_long_text_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidPlatformError) as caught:
        parse("/" * 100_000)
    assert len(str(caught.value)) < 400


def test_list_stops_at_the_first_bad_item_and_names_it() -> None:
    assert parse_all(["linux/amd64", "windows/arm64"]) == (
        Platform("linux", "amd64"),
        Platform("windows", "arm64"),
    )
    with pytest.raises(InvalidPlatformError, match=r"'a b'.*item 2 of the list"):
        parse_all(["linux/amd64", "a b", "c d"])


@pytest.mark.parametrize(
    ("platform", "short", "long"),
    vectors.rows("platforms", "format", "platform", "short", "long"),
)
def test_text_forms(platform: Platform, short: str, long: str) -> None:
    assert (format(platform), format_all(platform)) == (short, long)
