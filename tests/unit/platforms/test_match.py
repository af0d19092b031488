"""One match, and the order of each matcher."""

from __future__ import annotations

import pytest

from imagestore import platforms
from imagestore.platforms import Platform, any_of, everything, exact, only, only_os, only_strict, ordered, parse
from tests.support import vectors

LINUX = Platform("linux", "amd64")
WINDOWS = Platform("windows", "amd64", os_version="10.0.17763")


def _featured(*features: str, base: Platform = LINUX) -> Platform:
    return Platform(base.os, base.architecture, base.variant, base.os_version, features)


def _sorted(matcher: platforms.Matcher, texts: list[str]) -> list[str]:
    entries = [parse(text) for text in texts]
    return [platforms.format_all(platform) for platform in sorted(entries, key=matcher.sort_key)]


@pytest.mark.parametrize(
    ("wanted", "candidate", "fits"),
    vectors.rows("platforms", "match", "wanted", "candidate", "fits"),
)
def test_os_architecture_and_variant_are_equal_in_normal_form(
    wanted: Platform, candidate: Platform, fits: bool
) -> None:
    assert exact(wanted).match(candidate) is fits
    assert only_strict(wanted).match(candidate) is fits


def test_empty_os_counts_as_the_hosts() -> None:
    host = Platform("windows", "amd64")
    assert exact(Platform("windows", "amd64"), host=host).match(Platform("", "amd64"))
    assert not exact(LINUX, host=host).match(Platform("", "amd64"))
    assert only(Platform("", "amd64"), host=host).match(Platform("windows", "386"))
    for build in (exact, only, only_strict, only_os, ordered, any_of):
        assert build(Platform("", "amd64"), host=host).platforms == (host,)


@pytest.mark.parametrize(
    ("have", "asked", "fits"),
    [
        ((), (), True),
        (("a", "b"), (), True),
        (("a", "b"), ("b",), True),
        (("a", "b"), ("b", "a", "b", "b"), True),
        (("a",), ("a", "b"), False),
        ((), ("a",), False),
        ((), ("win32k",), False),
        (("",), ("",), True),
        ((), ("",), False),
    ],
)
def test_asked_features_are_within_the_wanted_ones(have: tuple[str, ...], asked: tuple[str, ...], fits: bool) -> None:
    assert exact(_featured(*have)).match(_featured(*asked)) is fits


@pytest.mark.parametrize(
    ("have", "asked", "fits"),
    [
        ((), ("win32k",), True),
        ((), ("win32k", "win32k"), False),
        ((), ("other",), False),
        ((), ("win32k", "other"), False),
        (("other",), ("win32k", "other"), True),
        (("win32k",), ("win32k",), True),
        (("win32k",), ("win32k", "win32k"), True),
        ((), ("WIN32K",), False),
    ],
)
def test_windows_overlooks_one_win32k(have: tuple[str, ...], asked: tuple[str, ...], fits: bool) -> None:
    wanted, candidate = _featured(*have, base=WINDOWS), _featured(*asked, base=WINDOWS)
    assert exact(wanted).match(candidate) is fits
    assert only(wanted).match(candidate) is fits


def test_only_os_does_not_overlook_win32k() -> None:
    assert not only_os(WINDOWS).match(_featured("win32k", base=WINDOWS))
    assert only_os(_featured("win32k", base=WINDOWS)).match(_featured("win32k", base=WINDOWS))


@pytest.mark.parametrize("build", ["exact", "ordered", "any_of"])
def test_windows_rules_need_the_name_to_the_letter_in_bare_matchers(build: str) -> None:
    odd = Platform("Windows", "amd64", os_version="10.0.17763")
    other = Platform("windows", "amd64", os_version="10.0.20348")
    assert getattr(platforms, build)(odd).match(other)
    assert not getattr(platforms, build)(WINDOWS).match(other)
    assert not getattr(platforms, build)(odd).match(_featured("win32k", base=WINDOWS))


@pytest.mark.parametrize("build", ["only", "only_strict", "only_os", "default_for"])
def test_matchers_that_normalise_first_keep_the_windows_rules(build: str) -> None:
    odd = Platform("Windows", "AMD64", os_version="10.0.17763")
    matcher = getattr(platforms, build)(odd)
    assert not matcher.match(Platform("windows", "amd64", os_version="10.0.20348"))
    assert matcher.match(Platform("windows", "amd64", os_version="10.0.17763.5"))


def test_windows_only_falls_back_to_386_and_default_does_not() -> None:
    candidate = Platform("windows", "386", os_version="10.0.17763")
    assert only(WINDOWS).match(candidate)
    assert not platforms.default_for(WINDOWS).match(candidate)


def test_only_os_takes_any_architecture_and_puts_its_own_first() -> None:
    matcher = only_os(parse("linux(+a)/arm64"))
    entries = ["windows/amd64", "linux/amd64", "linux/386", "linux/arm64", "linux(+a)/arm64/v8", "linux(+b)/arm64"]
    fits = [matcher.match(parse(text)) for text in entries]
    assert fits == [False, True, True, True, True, False]
    assert _sorted(matcher, entries) == [
        "linux(+a)/arm64/v8",
        "linux/arm64",
        "linux/amd64",
        "linux/386",
        "windows/amd64",
        "linux(+b)/arm64",
    ]


def test_only_os_has_no_fallback_order() -> None:
    matcher = only_os(Platform("linux", "arm", "v7"))
    assert not matcher.prefers(Platform("linux", "arm", "v6"), Platform("linux", "s390x"))
    assert matcher.prefers(Platform("linux", "arm"), Platform("linux", "arm", "v6"))


def test_ordered_prefers_earlier_platforms_then_more_features() -> None:
    matcher = ordered(parse("linux(+a+b)/arm64"), parse("linux(+a+b)/amd64"))
    entries = ["linux/amd64", "linux(+a)/amd64", "linux/arm64", "linux(+a+b)/amd64", "linux/s390x"]
    assert _sorted(matcher, entries) == [
        "linux/arm64",
        "linux(+a+b)/amd64",
        "linux(+a)/amd64",
        "linux/amd64",
        "linux/s390x",
    ]


def test_doubled_features_count_as_given_in_the_order() -> None:
    matcher = only(_featured("a", "b"))
    assert matcher.prefers(_featured("a", "a", "a"), _featured("a", "b"))
    assert not matcher.prefers(_featured("a", "b"), _featured("b", "a"))


def test_entries_that_do_not_fit_sort_by_architecture_without_their_features() -> None:
    matcher = only(LINUX)
    entries = ["windows/amd64", "linux(+other)/386", "linux(+other)/amd64", "linux/386", "linux/arm64"]
    assert _sorted(matcher, entries) == [
        "linux/386",
        "linux(+other)/amd64",
        "linux(+other)/386",
        "windows/amd64",
        "linux/arm64",
    ]


def test_any_prefers_what_fits_then_more_features_and_no_platform_over_another() -> None:
    matcher = any_of(parse("linux(+a)/arm64"), parse("linux(+a)/amd64"))
    entries = ["linux(+a)/s390x", "linux/s390x", "linux(+z)/amd64", "linux/amd64", "linux/arm64", "linux(+a)/amd64"]
    assert _sorted(matcher, entries) == [
        "linux(+a)/amd64",
        "linux/amd64",
        "linux/arm64",
        "linux(+z)/amd64",
        "linux(+a)/s390x",
        "linux/s390x",
    ]


@pytest.mark.parametrize("matcher", [any_of(), ordered()])
def test_nothing_wanted_takes_nothing(matcher: platforms.Matcher) -> None:
    assert not matcher.match(LINUX)
    assert matcher.explain(LINUX).rule == "nothing-wanted"
    assert not matcher.prefers(LINUX, WINDOWS)


def test_everything_takes_all_without_order() -> None:
    matcher = everything()
    assert matcher.match(Platform("unknown", "unknown"))
    assert not matcher.prefers(LINUX, WINDOWS)
    assert not matcher.prefers(WINDOWS, LINUX)
    assert matcher.platforms == ()


def test_exact_has_no_order() -> None:
    assert not exact(LINUX).prefers(LINUX, WINDOWS)


def test_matchers_name_what_they_want_in_normal_form() -> None:
    assert ordered(Platform("Linux", "x86_64"), WINDOWS).platforms == (LINUX, WINDOWS)
    assert "amd64" in repr(only(LINUX))
