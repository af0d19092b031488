"""Runtime handlers and the platforms they resolve to: design rules, the KEP's table, row by row."""

from __future__ import annotations

import pytest

from imagestore import config, errors, platforms
from imagestore.config import PlatformSource
from imagestore.errors import ConfigError
from imagestore.platforms import Platform
from tests.support import vectors
from tests.unit.config.handlers import ARM, IMAGES, LINUX, V2, V3, WINDOWS, read, resolved

GUESTS = vectors.rows("guest-platforms", "complete", "guest_platform", "host", "platform")


@pytest.mark.parametrize("section", [V2, V3], ids=["v2", "v3"])
@pytest.mark.parametrize(("guest", "host", "expected"), GUESTS)
def test_a_guest_platform_is_completed_from_the_host(guest: str, host: Platform, expected: str, section: str) -> None:
    assert resolved(guest, host=host, section=section) == expected


@pytest.mark.parametrize("guest", ["", 'OS = ""', "OSFeatures = []"])
def test_an_empty_guest_platform_counts_as_absent(guest: str) -> None:
    loaded = read(guest, host=WINDOWS)
    found = loaded.handler_platform("h")
    assert loaded.handler("h").guest_platform is None
    assert (found.source, found.is_declared, found.platform) == (PlatformSource.HOST, False, WINDOWS)


BAD_GUESTS = {
    'OS = "windows", OSVersion = "10.0"': "f:4: runtimes.h.guest_platform.OSVersion: os version '10.0': expected major",
    'OS = "windows", OSVersion = "10.0.x"': "f:4: runtimes.h.guest_platform.OSVersion: os version '10.0.x'",
    'OS = "windows", OSVersion = "10.0.70000"': "f:4: runtimes.h.guest_platform.OSVersion: os version '10.0.70000'",
    'OS = "windows", OSVersion = "-10.0.17763"': "f:4: runtimes.h.guest_platform.OSVersion: os version",
    'OS = "windows", OSVersion = "10.0.17763.x"': "f:4: runtimes.h.guest_platform.OSVersion: os version",
    'OS = "WINDOWS", OSVersion = "latest"': "f:4: runtimes.h.guest_platform.OSVersion: os version 'latest'",
    'OS = "windows", OSVersion = "\\u0661\\u0660.0.17763"': "f:4: runtimes.h.guest_platform.OSVersion: expected up",
    'OS = "windows (x)"': "f:4: runtimes.h.guest_platform.OS: expected up to 64 ASCII letters, digits, '_', '-', got",
    'OS = "lin.ux"': "f:4: runtimes.h.guest_platform.OS: expected up to 64",
    'Architecture = "amd64\\n"': "f:4: runtimes.h.guest_platform.Architecture: expected up to 64",
    f'Variant = "{"v" * 65}"': "f:4: runtimes.h.guest_platform.Variant: expected up to 64",
    'OSFeatures = [""]': "f:4: runtimes.h.guest_platform.OSFeatures: expected up to 64",
    'OSFeatures = "win32k"': "f:4: runtimes.h.guest_platform.OSFeatures: expected a list of texts, got a text",
    "OSVersion = 10": "f:4: runtimes.h.guest_platform.OSVersion: expected a text, got an integer",
    f"OSFeatures = {list('abcdefghijklmnopq')}": "f:4: runtimes.h.guest_platform.OSFeatures: expected at most 16",
    'OS = "linux", os = "windows"': "f:4: runtimes.h.guest_platform.os: is set twice in different spelling",
}


@pytest.mark.parametrize(("guest", "message"), BAD_GUESTS.items())
def test_a_bad_guest_platform_is_refused(guest: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(guest, host=WINDOWS)
    assert str(caught.value).startswith(message)


def test_an_unreadable_version_is_refused_when_only_the_host_says_windows() -> None:
    with pytest.raises(ConfigError, match=r"OSVersion: os version '10\.0'"):
        read('OSVersion = "10.0"', host=WINDOWS)


def test_an_image_tag_as_version_is_answered_with_its_build() -> None:
    with pytest.raises(ConfigError) as caught:
        read('OS = "windows", OSVersion = "ltsc2019"', host=WINDOWS)
    assert caught.value.hint == "ltsc2019 is build 10.0.17763: write that"


def test_the_same_member_twice_with_one_value_is_a_warning() -> None:
    loaded = read('OS = "linux", os = "linux"', host=LINUX)
    assert [finding.severity for finding in loaded.findings] == [config.Severity.WARNING]


def test_an_unknown_member_is_a_warning_with_a_suggestion() -> None:
    [finding] = read('OS = "linux", OSVersoin = "1"', host=LINUX).findings
    assert (finding.key, finding.hint) == ("runtimes.h.guest_platform.OSVersoin", "did you mean OSVersion?")


def test_a_misspelt_operating_system_is_a_warning_with_a_suggestion() -> None:
    [finding] = read('OS = "widnows", Architecture = "amd46"', host=LINUX).findings[:1]
    assert (finding.key, finding.hint) == ("runtimes.h.guest_platform.OS", "did you mean windows?")


# runtime_platforms

SPECIFIERS = [
    ("windows(10.0.17763)/amd64", LINUX, "windows(10.0.17763)/amd64", {"os", "architecture", "os_version"}),
    ("windows(10.0.17763)", LINUX, "windows(10.0.17763)/amd64", {"os", "os_version"}),
    ("arm64", LINUX, "linux/arm64", {"architecture"}),
    ("armel", LINUX, "linux/arm/v6", {"architecture", "variant"}),
    ("linux", ARM, "linux/arm/v6", {"os"}),
    ("linux/arm64/v8", LINUX, "linux/arm64/v8", {"os", "architecture", "variant"}),
    ("macos", LINUX, "darwin/amd64", {"os"}),
]


@pytest.mark.parametrize(("specifier", "host", "expected", "declared"), SPECIFIERS)
def test_runtime_platforms_declare_a_platform(
    specifier: str, host: Platform, expected: str, declared: set[str]
) -> None:
    text = f"version = 3\n{IMAGES}.runtime_platforms.h.platform = '{specifier}'\n{V3}.containerd.runtimes.h = {{}}"
    found = config.loads(text, filename="f", host=host).handler_platform("h")
    assert (platforms.format_all(found.platform), found.source) == (expected, PlatformSource.RUNTIME_PLATFORMS)
    assert {name for name, origin in found.origin.items() if origin == "runtime_platforms at f:2"} == declared
    assert {origin for name, origin in found.origin.items() if name not in declared} <= {"host"}


@pytest.mark.parametrize(
    ("name", "host", "platform"),
    [("runc", LINUX, "linux/arm64"), ("runhcs-wcow-process", WINDOWS, "windows(10.0.17763)/amd64")],
)
def test_the_built_in_default_handler_has_its_images_side(name: str, host: Platform, platform: str) -> None:
    table = f"{IMAGES}.runtime_platforms.{name}"
    text = f"version = 3\n{table}.platform = '{platform}'\n{table}.snapshotter = 'devmapper'"
    loaded = config.loads(text, filename="f", host=host)
    assert (loaded.default_handler, loaded.findings) == (name, ())
    assert loaded.handler(name).snapshotter == "devmapper"
    assert platforms.format_all(loaded.handler_platform(name).platform) == platform


@pytest.mark.parametrize(
    ("specifier", "message"),
    [
        ("mystery", "f:2: runtime_platforms.h.platform: platform 'mystery'"),
        ("linux/*", "f:2: runtime_platforms.h.platform: platform 'linux/*': at position 6: wildcards"),
        ("windows(10.0)/amd64", "f:2: runtime_platforms.h.platform: os version '10.0'"),
        ("windows(ltsc2019)", "f:2: runtime_platforms.h.platform: os version 'ltsc2019'"),
    ],
)
def test_an_unreadable_specifier_is_refused(specifier: str, message: str) -> None:
    text = f"version = 3\n{IMAGES}.runtime_platforms.h.platform = '{specifier}'\n{V3}.containerd.runtimes.h = {{}}"
    with pytest.raises(ConfigError) as caught:
        config.loads(text, filename="f", host=LINUX)
    assert str(caught.value).startswith(message)


def test_an_empty_specifier_is_the_host() -> None:
    text = f"version = 3\n{IMAGES}.runtime_platforms.h.platform = ''\n{V3}.containerd.runtimes.h = {{}}"
    assert config.loads(text, host=ARM).handler_platform("h").source is PlatformSource.HOST


def test_runtime_platforms_without_a_handler_are_a_warning() -> None:
    loaded = config.loads(f"version = 3\n{IMAGES}.runtime_platforms.ghost.platform = 'linux'", filename="f", host=LINUX)
    assert [str(finding) for finding in loaded.findings] == [
        "f:2: runtime_platforms.ghost: there is no runtime handler of this name"
    ]


def test_the_misspelt_table_of_containerds_migration_is_read_with_a_warning() -> None:
    text = f"""
version = 3
[{V3}.containerd.runtimes.h]
[{IMAGES}.runtime_platform.h]
  snapshotter = "devmapper"
  platform = {{ an = "object" }}
"""
    loaded = config.loads(text, filename="f", host=LINUX)
    assert loaded.handler("h").snapshotter == "devmapper"
    assert loaded.handler_platform("h").source is PlatformSource.HOST
    [finding] = loaded.findings
    assert finding.hint == "rename it to runtime_platforms"


# Precedence

BOTH = f"""
version = 3
[{V3}.containerd.runtimes.h]
  guest_platform.Architecture = "arm64"
[{IMAGES}.runtime_platforms.h]
  platform = "linux/s390x"
"""


def test_a_guest_platform_wins_over_runtime_platforms() -> None:
    found = config.loads(BOTH, filename="f", host=LINUX).handler_platform("h")
    assert (platforms.format_all(found.platform), found.source) == ("linux/arm64", PlatformSource.GUEST_PLATFORM)
    assert dict(found.origin) == {"os": "host", "architecture": "guest_platform at f:4"}
    assert found.warnings == (
        "f:6: runtime_platforms.h.platform: 'linux/s390x' isn't used: guest_platform at f:4 says linux/arm64 and wins",
    )


def test_two_tables_that_agree_have_nothing_said_about_them() -> None:
    found = config.loads(BOTH.replace("s390x", "aarch64"), host=LINUX).handler_platform("h")
    assert found.warnings == ()


def test_an_explicit_platform_wins_over_everything() -> None:
    found = config.loads(BOTH, host=LINUX).handler_platform("h", explicit=Platform("Linux", "x86_64"))
    assert (platforms.format_all(found.platform), found.source) == ("linux/amd64", PlatformSource.EXPLICIT)
    assert (found.is_declared, found.warnings, set(found.origin.values())) == (True, (), {"named in the call"})


def test_an_explicit_windows_platform_of_odd_case_keeps_its_version_test() -> None:
    explicit = Platform("Windows", "amd64", os_version="10.0.17763")
    found = config.default(LINUX).handler_platform("", explicit=explicit)
    assert not found.matcher.match(Platform("windows", "amd64", os_version="10.0.20348.1"))
    assert found.matcher.match(Platform("windows", "amd64", os_version="10.0.17763.1"))


def test_an_explicit_windows_platform_with_an_unreadable_version_is_refused() -> None:
    with pytest.raises(errors.InvalidPlatformError, match=r"os version '10\.0'"):
        config.default(LINUX).handler_platform("", explicit=Platform("windows", "amd64", os_version="10.0"))


@pytest.mark.parametrize("version", ["10.0.x", "10.0.70000", "10.0", "0.0.0", "ltsc2019", "10.0.20348.x"])
def test_an_unreadable_version_of_the_host_is_refused_whatever_decides_the_platform(version: str) -> None:
    host = Platform("windows", "amd64", os_version=version)
    loaded = config.default(host)
    for explicit in (None, Platform("windows", "amd64", os_version="10.0.17763"), LINUX):
        with pytest.raises(errors.InvalidPlatformError, match=r"^os version of the host '"):
            loaded.handler_platform("", explicit=explicit)
    with pytest.raises(errors.InvalidPlatformError, match=r"^os version of the host '"):
        config.default(WINDOWS).handler_platform("", host=Platform("Windows", "amd64", os_version=version))


def test_a_windows_platform_without_a_version_says_that_versions_were_not_compared() -> None:
    found = config.default(Platform("windows", "amd64")).handler_platform("").matcher.explain(WINDOWS)
    assert (found.matched, found.rule) == (True, "match.os.version-open")
    assert "versions were not compared" in found.reason


def test_candidates_without_os_count_for_the_given_host() -> None:
    found = config.default(WINDOWS).handler_platform("", explicit=Platform("windows", "amd64"))
    assert found.matcher.match(Platform("", "amd64"))
    assert not config.default(LINUX).handler_platform("", explicit=WINDOWS).matcher.match(Platform("", "amd64"))


def test_another_host_can_be_asked_about() -> None:
    found = config.loads(BOTH, host=LINUX).handler_platform("h", host=Platform("freebsd", "amd64"))
    assert (found.platform.os, found.host.os) == ("freebsd", "freebsd")


def test_the_matcher_uses_the_guest_as_host_of_the_version_test() -> None:
    matcher = (
        read('OS = "windows", Architecture = "amd64", OSVersion = "10.0.26100"', host=LINUX)
        .handler_platform("h")
        .matcher
    )
    answers = {
        build: matcher.match(Platform("windows", "amd64", os_version=f"10.0.{build}.1"))
        for build in (17763, 20348, 25398, 26100, 26200)
    }
    assert answers == {17763: False, 20348: True, 25398: True, 26100: True, 26200: False}


def test_two_handlers_may_share_a_platform() -> None:
    text = f"version = 3\n{V3}.containerd.runtimes = {{ a = {{}}, b = {{}} }}"
    loaded = config.loads(text, host=LINUX)
    assert loaded.handler_platform("a").platform == loaded.handler_platform("b").platform
