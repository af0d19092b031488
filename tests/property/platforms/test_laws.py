"""Laws of platforms: normal form, text form, order, choice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import platforms
from imagestore.errors import InvalidPlatformError
from imagestore.platforms import Platform, format, format_all, normalize, parse, windows  # noqa: A004

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = Platform("linux", "amd64")

_OS = st.sampled_from(["linux", "linux", "windows", "windows", "darwin", "freebsd", "Windows", "macOS", "", "unknown"])
_ARCHITECTURES = st.sampled_from(
    ["amd64", "amd64", "arm64", "arm", "386", "x86_64", "aarch64", "armhf", "armel", "i386", "riscv64", "unknown"]
)
_VARIANTS = st.sampled_from(["", "", "", "v1", "v2", "v3", "v6", "v7", "v8", "8", "v8.2", "v9", "v9.1", "unknown", "3"])
_VERSIONS = st.one_of(
    st.sampled_from(["", "", "garbage", "10.0", "0.0.0", "10.0.20348", "10.1.20348"]),
    st.builds(
        "10.0.{}.{}".format,
        st.sampled_from([14393, 17763, 20348, 22621, 26100, 26200, 65535]),
        st.integers(0, 40_000),
    ),
)
_FEATURES = st.lists(st.sampled_from(["win32k", "a", "b", ""]), max_size=3).map(tuple)
PLATFORMS = st.builds(Platform, _OS, _ARCHITECTURES, _VARIANTS, _VERSIONS, _FEATURES)
ANY_TEXT = st.text(max_size=8)
ODD_PLATFORMS = st.builds(Platform, ANY_TEXT, ANY_TEXT, ANY_TEXT, ANY_TEXT, st.lists(ANY_TEXT, max_size=3).map(tuple))
_SEVERAL = st.lists(PLATFORMS, max_size=3).map(tuple)
MATCHERS = st.one_of(
    *(
        st.builds(build, PLATFORMS, host=st.just(HOST))
        for build in (
            platforms.exact,
            platforms.only,
            platforms.only_strict,
            platforms.only_os,
            platforms.default_for,
        )
    ),
    _SEVERAL.map(lambda several: platforms.ordered(*several, host=HOST)),
    _SEVERAL.map(lambda several: platforms.any_of(*several, host=HOST)),
    st.just(platforms.everything()),
)

_NAME = st.text("abcXYZ019_-", min_size=1, max_size=6)
_PART = st.text("abcXYZ019_.-", min_size=1, max_size=6)


@given(st.one_of(PLATFORMS, ODD_PLATFORMS))
def test_normal_form_of_a_normal_form_is_itself(platform: Platform) -> None:
    once = normalize(platform, host=HOST)
    assert normalize(once, host=HOST) == once


@given(_NAME, _PART, _PART, st.text(max_size=8), st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_what_is_parsed_comes_back_from_its_long_form(
    name: str, architecture: str, variant: str, version: str, features: list[str]
) -> None:
    written = format_all(Platform(name, architecture, variant, _writable(version), tuple(map(_writable, features))))
    platform = parse(written, host=HOST)
    again = parse(format_all(platform), host=HOST)
    assert again == replace(platform, os_features=tuple(sorted(set(platform.os_features))))
    assert (again.os_version, set(again.os_features)) == (_writable(version), {*map(_writable, features)} - {""})


@given(_NAME, _PART, _PART)
def test_what_is_parsed_comes_back_from_its_short_form(name: str, architecture: str, variant: str) -> None:
    platform = parse(f"{name}/{architecture}/{variant}")
    assert parse(format(platform), host=HOST) == platform


@given(st.one_of(st.text(max_size=30), st.text("linuxarm64/()+%.v8*", max_size=20)))
def test_any_text_is_read_or_refused_with_our_error(text: str) -> None:
    try:
        platform = parse(text, host=HOST)
    except InvalidPlatformError:
        return
    assert platform.os


@given(MATCHERS, ODD_PLATFORMS)
def test_any_platform_gets_an_answer(matcher: platforms.Matcher, platform: Platform) -> None:
    found = matcher.explain(platform)
    assert found.matched is matcher.match(platform)
    assert found.rule.startswith("match") is found.matched
    assert found.reason
    assert not matcher.prefers(platform, platform)


@given(MATCHERS, PLATFORMS)
def test_explanation_agrees_with_the_match(matcher: platforms.Matcher, platform: Platform) -> None:
    assert matcher.explain(platform).matched is matcher.match(platform)


@given(MATCHERS, PLATFORMS)
def test_spelling_makes_no_difference(matcher: platforms.Matcher, platform: Platform) -> None:
    normal = normalize(platform, host=HOST)
    once = Platform(normal.os, normal.architecture, normal.variant, normal.os_version, platform.os_features)
    assert matcher.match(once) is matcher.match(platform)
    assert matcher.sort_key(once) == matcher.sort_key(platform)


@given(MATCHERS, PLATFORMS, PLATFORMS, PLATFORMS)
def test_preference_is_a_strict_weak_order(
    matcher: platforms.Matcher, first: Platform, second: Platform, third: Platform
) -> None:
    prefers = matcher.prefers
    assert not (prefers(first, second) and prefers(second, first))
    if prefers(first, second) and prefers(second, third):
        assert prefers(first, third)
    if _equal(prefers, first, second) and _equal(prefers, second, third):
        assert _equal(prefers, first, third)
    assert prefers(first, second) is (matcher.sort_key(first) < matcher.sort_key(second))


@pytest.mark.parametrize("build", [platforms.only, platforms.only_strict, platforms.only_os, platforms.default_for])
@given(data=st.data())
def test_what_fits_comes_before_what_does_not(build: Callable[..., platforms.Matcher], data: st.DataObject) -> None:
    matcher = build(data.draw(PLATFORMS), host=HOST)
    first, second = data.draw(PLATFORMS), data.draw(PLATFORMS)
    if matcher.match(first) and not matcher.match(second):
        assert matcher.prefers(first, second)


@given(PLATFORMS)
def test_a_platform_takes_itself(platform: Platform) -> None:
    readable = Platform(platform.os, platform.architecture, platform.variant, "", platform.os_features)
    assert platforms.exact(readable, host=HOST).match(readable)
    assert platforms.only_strict(readable, host=HOST).match(readable)
    assert platforms.only_os(readable, host=HOST).match(readable)


@given(PLATFORMS, PLATFORMS)
def test_strict_takes_no_more_than_only_but_for_unknown_arm64(wanted: Platform, candidate: Platform) -> None:
    normal = normalize(wanted, host=HOST)
    known = normal.architecture != "arm64" or platforms.only(normal).match(Platform(normal.os, "arm", "v5"))
    if known and platforms.only_strict(wanted, host=HOST).match(candidate):
        assert platforms.only(wanted, host=HOST).match(candidate)


@given(st.integers(0, 65535), st.integers(0, 65535))
def test_process_isolation_is_stricter_than_hyperv(host: int, image: int) -> None:
    assert windows.hyperv_compatible(host, image) or not windows.process_compatible(host, image)
    assert windows.process_compatible(host, host)


@given(st.text("0123456789.x- ", max_size=14))
def test_version_text_is_read_or_refused(text: str) -> None:
    version = windows.parse_version(text)
    try:
        checked = windows.check_version(text)
    except InvalidPlatformError:
        return
    assert checked == version


def _equal(prefers: Callable[[Platform, Platform], bool], first: Platform, second: Platform) -> bool:
    return not prefers(first, second) and not prefers(second, first)


def _writable(text: str) -> str:
    """Only what the grammar can carry: its own letters, and the five that have an escape."""
    return "".join(letter for letter in text if letter.isascii() and (letter.isalnum() or letter in "_.-%+()/"))


@given(MATCHERS, PLATFORMS, _VERSIONS, _FEATURES)
def test_a_refusal_for_the_names_holds_whatever_version_and_features(
    matcher: platforms.Matcher, platform: Platform, version: str, features: tuple[str, ...]
) -> None:
    found = matcher.explain(platform)
    if found.rule in {"nothing-wanted", "os", "architecture", "variant", "variant.unknown"}:
        assert matcher.explain(replace(platform, os_version=version, os_features=features)) == found


_SAME_BUILDS = st.builds(
    Platform,
    st.sampled_from(["windows", "windows", "Windows", ""]),
    st.sampled_from(["amd64", "amd64", "x86_64", "arm64"]),
    st.just(""),
    st.sampled_from(["", "garbage"])
    | st.builds(
        "{}.{}{}".format,
        st.sampled_from(["10.0", "10.0", "10.00", "10.1", "6.3"]),
        st.sampled_from(["17763", "20348", "020348", "25398", "26100", ""]),
        st.sampled_from(["", ".1", ".2", ".02", ".3", ".4", ".x", ".", ".1.2", ".99999999999"]),
    ),
    st.sampled_from([(), (), ("win32k",), ("a",), ("win32k", "win32k")]),
)


@given(MATCHERS | st.builds(platforms.default_for, _SAME_BUILDS, host=st.just(HOST)), st.data())
def test_the_best_of_many_is_the_first_in_order_of_those_that_fit(
    matcher: platforms.Matcher, data: st.DataObject
) -> None:
    many = data.draw(st.lists(PLATFORMS | ODD_PLATFORMS, max_size=12) | st.lists(_SAME_BUILDS, max_size=12))
    fitting = [(matcher.sort_key(each), number) for number, each in enumerate(many) if matcher.match(each)]
    assert matcher.best(enumerate(many)) == (min(fitting)[1] if fitting else None)
