"""What a node of some platform takes by default, and which of several it prefers."""

from __future__ import annotations

import pytest

from imagestore.platforms import Platform, default_for, format_all, parse


def _ranked(wanted: str, versions: list[str]) -> list[str]:
    matcher = default_for(parse(wanted))
    entries = [Platform("windows", "amd64", os_version=version) for version in versions]
    fitting = [entry for entry in entries if matcher.match(entry)]
    return [entry.os_version for entry in sorted(fitting, key=matcher.sort_key)]


def _best(wanted: str, versions: list[str]) -> str | None:
    entries = [Platform("windows", "amd64", os_version=version) for version in versions]
    best = default_for(parse(wanted)).best(enumerate(entries))
    return None if best is None else entries[best].os_version


@pytest.mark.parametrize(
    ("wanted", "versions", "expected"),
    [
        (
            "windows(10.0.26200)/amd64",
            ["10.0.20348.9999", "10.0.26100.1", "10.0.17763.1", "10.0.25398.5"],
            ["10.0.26100.1", "10.0.25398.5", "10.0.20348.9999"],
        ),
        ("windows(10.0.20348)/amd64", ["10.0.20348.999", "10.0.20348.1000"], ["10.0.20348.1000", "10.0.20348.999"]),
        ("windows(10.0.26100)/amd64", ["10.0.26100.7462", "10.0.26100.32230"], ["10.0.26100.32230", "10.0.26100.7462"]),
        (
            "windows(10.0.17763.500)/amd64",
            ["10.0.17763.900", "10.0.17763.499", "10.0.17763", "10.0.17763.500", "10.0.17763.800", "10.0.17763.100"],
            ["10.0.17763.500", "10.0.17763.499", "10.0.17763.100", "10.0.17763.900", "10.0.17763.800", "10.0.17763"],
        ),
        ("windows(10.0.17763)/amd64", ["", "10.0.17763.1", "10.0.20348.1"], ["10.0.17763.1", ""]),
        (
            "windows/amd64",
            ["", "10.0.x", "10.0.9999.1", "10.0.26100.1", "9.0.60000.1"],
            ["10.0.26100.1", "10.0.9999.1", "9.0.60000.1", "10.0.x", ""],
        ),
    ],
)
def test_windows_takes_the_nearest_build_then_the_best_revision(
    wanted: str, versions: list[str], expected: list[str]
) -> None:
    assert _ranked(wanted, versions) == expected
    assert _ranked(wanted, versions[::-1]) == expected
    # The best is found by another way than by sorting.
    while expected:
        assert _best(wanted, expected) == _best(wanted, expected[::-1]) == expected[0]
        expected = expected[1:]


@pytest.mark.parametrize(
    ("wanted", "versions", "expected"),
    [
        ("windows(10.0.20348)/amd64", [""], ""),
        ("windows(10.0.20348)/amd64", ["10.0.x", "10.0.17763.1"], None),
        ("windows(10.0.20348)/amd64", ["10.0.x", ""], ""),
        ("windows(10.0.20348)/amd64", ["", "10.0.20348.1"], "10.0.20348.1"),
        ("windows/amd64", ["", "10.0.x"], "10.0.x"),
    ],
)
def test_what_has_no_version_fits_a_windows_node_and_what_can_not_be_read_does_not(
    wanted: str, versions: list[str], expected: str | None
) -> None:
    assert _best(wanted, versions) == expected


def test_windows_prefers_what_fits() -> None:
    matcher = default_for(parse("windows(10.0.17763)/amd64"))
    fits, newer = parse("windows(10.0.17763)/amd64"), parse("windows(10.0.20348)/amd64")
    assert matcher.prefers(fits, newer)
    assert not matcher.prefers(newer, fits)
    assert not matcher.prefers(newer, parse("linux/amd64"))


@pytest.mark.parametrize(
    ("node", "candidates", "expected"),
    [
        (
            "darwin/arm64/v8",
            ["linux/arm64/v8", "linux/arm", "darwin/arm64", "linux/amd64"],
            ["darwin/arm64", "linux/arm64/v8"],
        ),
        ("darwin/amd64", ["linux/386", "linux/amd64", "darwin/amd64"], ["darwin/amd64", "linux/amd64"]),
        ("freebsd/amd64", ["linux/amd64", "freebsd/amd64", "linux/386"], ["freebsd/amd64", "linux/amd64"]),
        ("freebsd/arm/v7", ["linux/arm/v6", "linux/arm", "freebsd/arm"], ["freebsd/arm", "linux/arm"]),
        ("linux/arm64/v8", ["linux/arm/v5", "linux/arm64", "linux/amd64"], ["linux/arm64", "linux/arm/v5"]),
        ("linux/amd64/v3", ["linux/386", "linux/amd64/v2", "linux/amd64/v4"], ["linux/amd64/v2", "linux/386"]),
        ("openbsd/amd64", ["linux/amd64", "openbsd/386"], ["openbsd/386"]),
        ("wasi/wasm", ["linux/wasm", "wasi/wasm"], ["wasi/wasm"]),
    ],
)
def test_other_nodes_take_what_they_run(node: str, candidates: list[str], expected: list[str]) -> None:
    matcher = default_for(parse(node))
    fitting = [each for each in map(parse, candidates) if matcher.match(each)]
    assert [format_all(each) for each in sorted(fitting, key=matcher.sort_key)] == expected


def test_darwin_linux_images_need_no_variant() -> None:
    matcher = default_for(Platform("darwin", "arm", "v6"))
    assert matcher.match(Platform("linux", "arm"))
    assert not matcher.match(Platform("linux", "arm", "v6"))


def test_freebsd_arm_of_unknown_variant_takes_only_that() -> None:
    matcher = default_for(Platform("freebsd", "arm", "unknown"))
    assert matcher.match(Platform("linux", "arm", "unknown"))
    assert not matcher.match(Platform("linux", "arm", "v7"))


def test_empty_os_is_the_hosts() -> None:
    matcher = default_for(Platform("", "amd64"), host=Platform("darwin", "arm64"))
    assert [each.os for each in matcher.platforms] == ["darwin", "linux"]
