"""Explanations: the rule's identifier is stable, the sentence names both values."""

from __future__ import annotations

import pytest

from imagestore.platforms import (
    Explanation,
    Platform,
    Rule,
    any_of,
    default_for,
    everything,
    exact,
    only,
    only_os,
    ordered,
    parse,
)
from imagestore.platforms.explain import REFUSALS


@pytest.mark.parametrize(
    ("wanted", "candidate", "rule", "reason"),
    [
        ("linux/amd64", "linux/amd64", "match", "linux/amd64 fits linux/amd64"),
        ("linux/amd64", "linux/386", "match.fallback", "linux/386 is fallback number 1 of linux/amd64"),
        ("linux/amd64", "windows/amd64", "os", "os windows ≠ linux"),
        ("linux/amd64", "linux/arm64", "architecture", "architecture arm64 ≠ amd64 (accepted: amd64, 386)"),
        ("linux/riscv64", "linux/arm64", "architecture", "architecture arm64 ≠ riscv64"),
        ("linux/amd64", "linux/amd64/v2", "variant", "variant amd64/v2 ≠ amd64 (accepted: amd64, 386)"),
        (
            "linux/amd64/v3",
            "linux/amd64/v4",
            "variant",
            "variant amd64/v4 ≠ amd64/v3 (accepted: amd64/v3 down to amd64, 386)",
        ),
        ("linux/arm/v6", "linux/arm", "variant", "variant arm/v7 ≠ arm/v6 (accepted: arm/v6 down to arm/v5)"),
        (
            "linux/arm64/unknown",
            "linux/arm64",
            "variant.unknown",
            "variant arm64/unknown is no known arm64 variant, so nothing is known to run",
        ),
        (
            "linux(+a)/amd64",
            "linux(+b)/amd64",
            "os.features",
            "os.features b asked for, but the wanted platform has a",
        ),
        (
            "windows(10.0.17763)/amd64",
            "windows(10.0.20348.1970)/amd64",
            "os.version.build-exact",
            (
                "os.version build 20348 ≠ 17763: process isolation before 20348 needs the exact build "
                "(image ltsc2022, wanted ltsc2019)"
            ),
        ),
        (
            "windows(10.0.26200)/amd64",
            "windows(10.0.17763)/amd64",
            "os.version.stable-abi-floor",
            (
                "os.version build 17763 < 20348: process isolation on 26200 reaches back to build 20348, not further "
                "(image ltsc2019, wanted Windows 11 25H2)"
            ),
        ),
        (
            "windows(10.0.20348)/amd64",
            "windows(10.0.26101)/amd64",
            "os.version.newer-than-host",
            "os.version build 26101 > 20348: an image must not be newer than its host (wanted ltsc2022)",
        ),
        (
            "windows(10.0.20348)/amd64",
            "windows(6.3.20348)/amd64",
            "os.version.major-minor",
            "os.version 6.3 ≠ 10.0",
        ),
        (
            "windows(10.0.20348)/amd64",
            "windows(10.0.x)/amd64",
            "os.version.unreadable",
            "os.version '10.0.x' can't be read: expected major.minor.build[.revision], at most 255.255.65535",
        ),
        (
            "windows/amd64",
            "windows(10.0.x)/amd64",
            "match.os.version-unreadable",
            "os.version '10.0.x' can't be read; taken only because windows/amd64 names none",
        ),
        (
            "windows(10.0.20348)/amd64",
            "windows/amd64",
            "match.os.version-open",
            "windows/amd64 names no os.version, which fits every Windows build",
        ),
        (
            "windows(10.0.26100)/amd64",
            "windows(10.0.20348.1)/amd64",
            "match",
            (
                "windows(10.0.20348.1)/amd64: build 20348 runs on 26100, whose stable kernel interface reaches back to "
                "20348 (image ltsc2022, wanted ltsc2025)"
            ),
        ),
        (
            "windows(10.0.17763)/amd64",
            "windows(10.0.17763.5)/amd64",
            "match",
            "windows(10.0.17763.5)/amd64 has the wanted build 17763 (ltsc2019)",
        ),
        (
            "windows/amd64",
            "windows(10.0.1)/amd64",
            "match.os.version-open",
            "windows(10.0.1)/amd64: versions were not compared, since the wanted windows/amd64 names no os.version",
        ),
        (
            "windows/amd64",
            "windows/amd64",
            "match.os.version-open",
            "windows/amd64: versions were not compared, since the wanted windows/amd64 names no os.version",
        ),
        (
            "windows(10.0)/amd64",
            "windows(10.0.20348.1)/amd64",
            "match.os.version-open",
            (
                "windows(10.0.20348.1)/amd64: versions were not compared, since the wanted windows(10.0)/amd64 has an "
                "os.version that can't be read"
            ),
        ),
        (
            "windows(0.0.0)/amd64",
            "windows(10.0.20348.1)/amd64",
            "match.os.version-open",
            (
                "windows(10.0.20348.1)/amd64: versions were not compared, since the wanted windows(0.0.0)/amd64 has an "
                "os.version that can't be read"
            ),
        ),
        (
            "windows(10.0.1)/amd64",
            "windows(10.0.2)/amd64",
            "os.version.build-exact",
            "os.version build 2 ≠ 1: process isolation before 20348 needs the exact build",
        ),
    ],
)
def test_rule_and_sentence(wanted: str, candidate: str, rule: str, reason: str) -> None:
    found = only(parse(wanted)).explain(parse(candidate))
    assert (found.rule, found.reason) == (rule, reason)
    assert found.matched is rule.startswith("match")


@pytest.mark.parametrize(
    ("guest", "candidate", "reason"),
    [
        (17763, 20348, "build 20348 ≠ 17763: before build 20348 kernel and image need the exact same build"),
        (20348, 26100, "build 26100 > 20348: an image must not be newer than the guest's kernel"),
        (26100, 17763, "build 17763 < 20348: a guest of build 26100 reaches back to build 20348, not further"),
    ],
)
def test_a_guests_reasons_do_not_speak_of_process_isolation(guest: int, candidate: int, reason: str) -> None:
    image = Platform("windows", "amd64", os_version=f"10.0.{candidate}.1")
    wanted = Platform("windows", "amd64", os_version=f"10.0.{guest}")
    found = default_for(wanted, guest=True).explain(image)
    assert found.reason.startswith(f"os.version {reason} (image")
    assert found.rule == default_for(wanted).explain(image).rule
    assert "its host" in default_for(wanted).explain(image).reason or "process isolation" in (
        default_for(wanted).explain(image).reason
    )


def test_a_bare_matcher_says_when_it_leaves_the_version_test_out() -> None:
    found = exact(Platform("Windows", "amd64", os_version="10.0.17763")).explain(parse("windows(10.0.20348)/amd64"))
    assert (found.matched, found.rule) == (True, "match.os.version-open")
    assert found.reason.endswith("was not spelled 'windows', which leaves the version test out")


def test_explanations_are_values() -> None:
    node = default_for(parse("linux/amd64"))
    first, second = (node.explain(Platform("linux", "arm64")) for _ in range(2))
    assert first == second == Explanation(False, "architecture", first.reason)
    assert hash(first) == hash(second)
    assert first != node.explain(Platform("linux", "s390x"))


def test_windows_fallback_architecture_is_a_fallback() -> None:
    found = only(parse("windows(10.0.17763)/amd64")).explain(parse("windows(10.0.17763)/386"))
    assert found.rule == "match.fallback"


@pytest.mark.parametrize("build", [ordered, any_of])
def test_of_several_wanted_platforms_the_closest_refusal_is_told(build: type) -> None:
    matcher = build(parse("linux/arm64"), parse("windows(10.0.17763)/amd64"), parse("darwin/arm64"))
    assert matcher.explain(parse("windows(10.0.20348)/amd64")).rule == "os.version.build-exact"
    assert matcher.explain(parse("linux/amd64")).rule == "architecture"
    assert matcher.explain(parse("windows(10.0.17763)/amd64")).rule == "match"
    assert matcher.explain(parse("aix/ppc64")).reason == "os aix ≠ linux"


def test_any_architecture_leaves_architectures_out() -> None:
    assert only_os(parse("linux/amd64")).explain(parse("linux/s390x")).rule == "match"
    assert everything().explain(parse("linux/s390x")).rule == "match.anything"


def test_what_a_candidate_leaves_out_is_said() -> None:
    host = Platform("linux", "amd64")
    node = only(host, host=host)
    assert node.explain(Platform("", "amd64", "v1")).reason == "amd64/v1 of the host's os fits linux/amd64"
    assert node.explain(Platform("", "386")).reason == "386 of the host's os is fallback number 1 of linux/amd64"
    assert node.explain(Platform("", "")).reason == "architecture (empty) ≠ amd64 (accepted: amd64, 386)"
    anything = only_os(host, host=host)
    assert anything.explain(Platform("", "")).reason == "any architecture of the host's os fits linux/amd64"


def test_hostile_values_are_cut_in_the_sentence() -> None:
    long = "x" * 100_000
    for candidate in (
        Platform(long, long),
        Platform("linux", long, long),
        Platform("linux", "amd64", long),
        Platform("linux", "amd64", os_features=(long,) * 50),
    ):
        assert len(exact(Platform("linux", "amd64")).explain(candidate).reason) < 1000
    assert (
        len(default_for(parse("windows(10.0.1)/amd64")).explain(Platform("windows", "amd64", "", long)).reason) < 1000
    )


def test_identifiers_are_stable_and_every_refusal_has_its_stage() -> None:
    assert [str(rule) for rule in Rule] == [
        "match",
        "match.fallback",
        "match.os.version-open",
        "match.os.version-unreadable",
        "match.anything",
        "os",
        "architecture",
        "variant",
        "variant.unknown",
        "os.version.major-minor",
        "os.version.build-exact",
        "os.version.stable-abi-floor",
        "os.version.newer-than-host",
        "os.version.unreadable",
        "os.features",
        "nothing-wanted",
    ]
    assert set(REFUSALS) == {rule for rule in Rule if not rule.startswith("match")}
