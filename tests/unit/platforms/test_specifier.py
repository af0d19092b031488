"""Reading and writing specifiers: the grammar, its errors, and what a short form means on which host."""

from __future__ import annotations

import pytest

from imagestore.errors import InvalidPlatformError
from imagestore.platforms import Platform, format, format_all, parse, parse_all  # noqa: A004

AMD64 = Platform("linux", "amd64")
ARM64 = Platform("linux", "arm64", "v8")
ARMV6 = Platform("linux", "arm", "v6")
ARMV7 = Platform("linux", "arm", "v7")
WINDOWS = Platform("windows", "amd64", os_version="10.0.20348")


@pytest.mark.parametrize(
    ("text", "host", "expected"),
    [
        ("linux", AMD64, Platform("linux", "amd64")),
        ("linux", ARM64, Platform("linux", "arm64")),
        # Only arm has the variant of its host.
        ("linux", Platform("linux", "amd64", "v3"), Platform("linux", "amd64")),
        ("linux", Platform("linux", "arm64", "v9"), Platform("linux", "arm64")),
        ("linux", ARMV7, Platform("linux", "arm")),
        ("linux", ARMV6, Platform("linux", "arm", "v6")),
        ("linux", Platform("linux", "arm", "unknown"), Platform("linux", "arm", "unknown")),
        ("LINUX", AMD64, Platform("linux", "amd64")),
        ("macOS", AMD64, Platform("darwin", "amd64")),
        ("windows", AMD64, Platform("windows", "amd64")),
        ("windows()", AMD64, Platform("windows", "amd64")),
        ("windows(10.0.17763)", AMD64, Platform("windows", "amd64", os_version="10.0.17763")),
        ("windows(10.0%2Bx)", AMD64, Platform("windows", "amd64", os_version="10.0+x")),
        ("linux(+gpu+simd)", AMD64, Platform("linux", "amd64", os_features=("gpu", "simd"))),
        ("linux(+b+a+b)", AMD64, Platform("linux", "amd64", os_features=("b", "a", "b"))),
        ("linux(+%2B)", AMD64, Platform("linux", "amd64", os_features=("+",))),
        ("amd64", WINDOWS, Platform("windows", "amd64")),
        ("x86_64", AMD64, Platform("linux", "amd64")),
        ("x86-64", AMD64, Platform("linux", "amd64")),
        ("Aarch64", AMD64, Platform("linux", "arm64")),
        ("i386", AMD64, Platform("linux", "386")),
        ("arm", AMD64, Platform("linux", "arm")),
        ("armhf", AMD64, Platform("linux", "arm")),
        ("armel", AMD64, Platform("linux", "arm", "v6")),
        ("wasm", AMD64, Platform("linux", "wasm")),
        ("loong64", AMD64, Platform("linux", "loong64")),
        ("js", AMD64, Platform("js", "amd64")),
    ],
)
def test_one_part_takes_the_rest_from_the_host(text: str, host: Platform, expected: Platform) -> None:
    assert parse(text, host=host) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("linux/arm", Platform("linux", "arm")),
        ("linux/arm/v7", Platform("linux", "arm", "v7")),
        ("linux/arm/7", Platform("linux", "arm", "v7")),
        ("LINUX/ARM/V7", Platform("linux", "arm", "v7")),
        ("linux/armhf", Platform("linux", "arm")),
        ("linux/armel", Platform("linux", "arm", "v6")),
        ("linux/armhf/v8", Platform("linux", "arm", "v7")),
        ("linux/armel/v7", Platform("linux", "arm", "v6")),
        ("linux/arm64", Platform("linux", "arm64")),
        ("linux/arm64/8", Platform("linux", "arm64", "v8")),
        ("linux/arm64/v8", Platform("linux", "arm64", "v8")),
        ("linux/arm64/v8.0", Platform("linux", "arm64", "v8")),
        ("linux/arm64/v9.0", Platform("linux", "arm64", "v9")),
        ("linux/i386/v1", Platform("linux", "386")),
        ("linux/386/v1", Platform("linux", "386", "v1")),
        ("linux/amd64/v1", Platform("linux", "amd64")),
        ("linux/amd64/1", Platform("linux", "amd64", "1")),
        ("linux/amd64/v3", Platform("linux", "amd64", "v3")),
        ("foo/bar", Platform("foo", "bar")),
        ("unknown/unknown", Platform("unknown", "unknown")),
        ("wasi/wasm", Platform("wasi", "wasm")),
        ("linux/a.b/.", Platform("linux", "a.b", ".")),
        (
            "windows(10.0.17763.1+win32k)/amd64",
            Platform("windows", "amd64", os_version="10.0.17763.1", os_features=("win32k",)),
        ),
        ("windows(+feat)/amd64", Platform("windows", "amd64", os_features=("feat",))),
        ("windows(50%25done)/amd64", Platform("windows", "amd64", os_version="50%done")),
        ("linux(%E2%82%AC)/amd64", Platform("linux", "amd64", os_version="€")),
        ("linux(a%ffb%E2%82)/amd64", Platform("linux", "amd64", os_version="a\ufffdb\ufffd\ufffd")),
    ],
)
def test_two_and_three_parts_need_no_host(text: str, expected: Platform) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "position", "rule"),
    [
        ("", 0, "empty"),
        ("/linux/arm", 0, "empty"),
        ("linux/", 6, "architecture is empty"),
        ("linux/arm/", 10, "variant is empty"),
        ("linux//v7", 6, "architecture is empty"),
        ("linux/arm/foo/bar", 14, "more than three parts"),
        ("linux/arm/foo/", 14, "more than three parts"),
        ("linux /arm", 5, "' ' can't stand"),
        ("linux/&arm", 6, "'&' can't stand"),
        ("linux/amd64\n", 11, r"'\n' can't stand"),
        ("linux\n", 5, r"'\n' can't stand"),
        ("lin.ux/amd64", 3, "'.' can't stand"),
        ("linux/ärm", 6, "'ä' can't stand"),
        ("٣/arm", 0, "can't start"),
        ("*", 0, "wildcards"),
        ("linux/*", 6, "wildcards"),
        ("windows(10.0*)/amd64", 12, "wildcards"),
        ("windows(10.0", 7, "not closed"),
        ("windows(10.0)x/amd64", 7, "expected"),
        ("windows(+)", 7, "expected"),
        ("windows(++a)", 7, "expected"),
        ("windows(a b)/amd64", 7, "expected"),
        ("windows(%zz)/amd64", 8, "two hex digits"),
        ("windows(10%)/amd64", 10, "two hex digits"),
        ("windows(1+%4)/amd64", 10, "two hex digits"),
        ("wasi", 0, "neither"),
        ("armhf()", 0, "neither"),
        ("arm(1)", 0, "neither"),
        ("i686", 0, "neither"),
        ("unknown", 0, "neither"),
    ],
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
    [
        (Platform("linux", "arm64", "v8"), "linux/arm64/v8", "linux/arm64/v8"),
        (Platform("linux", "amd64"), "linux/amd64", "linux/amd64"),
        (Platform("linux", ""), "linux", "linux"),
        (Platform("linux", "", "v7"), "linux/v7", "linux/v7"),
        (Platform("", "amd64", "v2", "1", ("a",)), "unknown", "unknown"),
        (Platform("Linux", "X86_64"), "Linux/X86_64", "Linux/X86_64"),
        (Platform("windows", "amd64", os_version="10.0.1"), "windows/amd64", "windows(10.0.1)/amd64"),
        (Platform("linux", "amd64", os_features=("b", "a", "", "b")), "linux/amd64", "linux(+a+b)/amd64"),
        (Platform("linux", "amd64", os_features=("",)), "linux/amd64", "linux/amd64"),
        (
            Platform("windows", "amd64", os_version="1%+()/", os_features=("f+1",)),
            "windows/amd64",
            "windows(1%25%2B%28%29%2F+f%2B1)/amd64",
        ),
        (Platform("linux", "a//b", "c/"), "linux/a/b/c", "linux/a/b/c"),
        (Platform("/", ""), "/", "/"),
    ],
)
def test_text_forms(platform: Platform, short: str, long: str) -> None:
    assert (format(platform), format_all(platform)) == (short, long)
