"""Windows versions: reading, the two isolation rules, the matrix, names."""

from __future__ import annotations

import pytest

from imagestore.errors import InvalidPlatformError
from imagestore.platforms import Platform, exact, windows
from imagestore.platforms.windows import (
    WindowsVersion,
    build_of_tag,
    check_version,
    describe,
    name_of,
    parse_version,
)

_IMAGES = (14393, 16299, 17763, 19042, 20348, 22000, 22621, 25398, 26100, 26200)
_MATRIX = {
    14393: "PH - - - - - - - - -",
    16299: "H PH - - - - - - - -",
    17134: "H H - - - - - - - -",
    17763: "H H PH - - - - - - -",
    18362: "H H H - - - - - - -",
    19042: "H H H PH - - - - - -",
    19044: "H H H H - - - - - -",
    20348: "H H H H PH - - - - -",
    22000: "H H H H PH PH - - - -",
    22621: "H H H H PH PH PH - - -",
    25398: "H H H H PH PH PH PH - -",
    26100: "H H H H PH PH PH PH PH -",
    26200: "H H H H PH PH PH PH PH PH",
}

_UNREADABLE = [
    "10",
    "10.0",
    "10.0.x",
    "10.0.",
    "..",
    "10..17763",
    ".0.17763",
    "10.0.70000",
    "10.0.65536",
    "256.0.17763",
    "10.256.17763",
    "-10.0.17763",
    "10.0.-17763",
    "+10.0.17763",
    "10.0.+1",
    "10.0.1_000",
    " 10.0.17763",
    "10.0.17763\n",
    "10.0.1e3",
    "\u0661\u0660.0.17763",
    "10.0.²",
    "garbage",
    "10.0." + "9" * 5000,
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.17763", WindowsVersion(10, 0, 17763)),
        ("10.0.17763.4851", WindowsVersion(10, 0, 17763, 4851)),
        ("010.00.017763", WindowsVersion(10, 0, 17763)),
        ("0" * 5000 + "10.0.17763", WindowsVersion(10, 0, 17763)),
        ("255.255.65535", WindowsVersion(255, 255, 65535)),
        ("10.0.17763.", WindowsVersion(10, 0, 17763)),
        ("10.0.17763.x", WindowsVersion(10, 0, 17763)),
        ("10.0.17763.1.2", WindowsVersion(10, 0, 17763, 1)),
        ("10.0.17763.99999999999", WindowsVersion(10, 0, 17763)),
        ("10.0.17763.4294967295", WindowsVersion(10, 0, 17763, 4294967295)),
        ("10.0.17763.4294967296", WindowsVersion(10, 0, 17763)),
        ("10.00000000000.17763", WindowsVersion(10, 0, 17763)),
        ("0.0.0", WindowsVersion(0, 0, 0)),
    ],
)
def test_readable_versions(text: str, expected: WindowsVersion) -> None:
    assert parse_version(text) == expected


@pytest.mark.parametrize("text", _UNREADABLE)
def test_unreadable_versions_never_match_a_host_that_has_one(text: str) -> None:
    assert parse_version(text) is None
    for host in ("10.0.14393", "10.0.20348", "10.0.26200", "0.0.1"):
        found = exact(Platform("windows", "amd64", os_version=host)).explain(
            Platform("windows", "amd64", os_version=text)
        )
        assert (found.matched, found.rule) == (False, "os.version.unreadable")


@pytest.mark.parametrize(
    "text", [*_UNREADABLE, "", "0.0.0", "10.0.17763.", "10.0.17763.x", "10.0.1.2.3", "10.0.1.9999999999999"]
)
def test_configured_versions_must_be_readable_to_the_end(text: str) -> None:
    with pytest.raises(InvalidPlatformError, match="OSVersion of handler h") as caught:
        check_version(text, what="OSVersion of handler h")
    assert len(str(caught.value)) < 300
    assert caught.value.hint


@pytest.mark.parametrize("text", ["10.0.17763", "10.0.20348.1970"])
def test_good_configured_versions_are_read(text: str) -> None:
    assert str(check_version(text)) == text


@pytest.mark.parametrize("host", sorted(_MATRIX))
def test_matrix_agrees_with_the_published_table(host: int) -> None:
    found = []
    for image in _IMAGES:
        isolations = {"P": windows.process_compatible(host, image), "H": windows.hyperv_compatible(host, image)}
        found.append("".join(letter for letter, runs in isolations.items() if runs) or "-")
    assert " ".join(found) == _MATRIX[host]


@pytest.mark.parametrize("host", sorted(_MATRIX))
@pytest.mark.parametrize("image", _IMAGES)
def test_matching_follows_the_process_rule(host: int, image: int) -> None:
    node = Platform("windows", "amd64", os_version=f"10.0.{host}.7")
    entry = Platform("windows", "amd64", os_version=f"10.0.{image}.123")
    assert exact(node).match(entry) is windows.process_compatible(host, image)


@pytest.mark.parametrize(
    ("host", "floor"), [(20348, 20348), (22621, 20348), (26100, 20348), (26200, 20348), (65535, 20348)]
)
def test_floor_is_the_long_term_release_before_the_hosts_generation(host: int, floor: int) -> None:
    assert windows.stable_floor(host) == floor


@pytest.mark.parametrize(
    ("host", "floor"), [(26100, 20348), (29999, 20348), (30000, 26100), (30500, 26100), (40000, 30000), (41000, 30000)]
)
def test_the_floor_moves_on_with_every_long_term_release_to_come(
    host: int, floor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "LTSC_STABLE", (20348, 26100, 30000, 40000))
    assert windows.oldest_process_compatible(host) == floor


def test_older_floor_rule_is_not_ours() -> None:
    assert windows.process_compatible(26200, windows.LTSC_STABLE[0])


@pytest.mark.parametrize(
    ("host", "image", "fits"),
    [
        ("", "10.0.17763", True),
        ("", "garbage", True),
        ("garbage", "10.0.17763", True),
        ("0.0.0", "10.0.17763", True),
        ("10.0.17763", "", True),
        ("10.0.17763", "10.0.17763.1", True),
        ("10.0.17763.9", "10.0.17763.1", True),
        ("10.0.17763", "10.1.17763", False),
        ("10.0.20348", "11.0.20348", False),
        ("10.0.17763", "10.0.1776", False),
        ("10.0.20347", "10.0.20346", False),
        ("10.0.20349", "10.0.20348", True),
    ],
)
def test_version_test(host: str, image: str, fits: bool) -> None:
    assert (
        exact(Platform("windows", "arm64", os_version=host)).match(Platform("windows", "arm64", os_version=image))
        is fits
    )


@pytest.mark.parametrize(
    ("tag", "build"),
    [
        ("ltsc2016", 14393),
        ("1709", 16299),
        ("ltsc2019", 17763),
        ("1809", 17763),
        ("20H2", 19042),
        ("20h2", 19042),
        ("ltsc2022", 20348),
        ("LTSC2025", 26100),
        ("latest", None),
    ],
)
def test_image_tags_name_builds(tag: str, build: int | None) -> None:
    assert build_of_tag(tag) == build


@pytest.mark.parametrize(
    ("build", "name"),
    [(17763, "ltsc2019"), (22631, "Windows 11 23H2"), (25398, "Windows Server, version 23H2"), (1, "")],
)
def test_builds_have_names(build: int, name: str) -> None:
    assert name_of(build) == name
    assert describe(build) == (f"{build} ({name})" if name else "1")


def test_a_tag_in_place_of_a_version_is_told_its_build() -> None:
    with pytest.raises(InvalidPlatformError) as caught:
        check_version("ltsc2022")
    assert caught.value.hint == "ltsc2022 is build 10.0.20348: write that"
