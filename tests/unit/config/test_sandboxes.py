"""Advice about sandboxes and builds: what it says to write leaves nothing to say."""

from __future__ import annotations

import re

import pytest

from imagestore import config
from imagestore.platforms import Platform
from tests.unit.config.test_advice import advice, node, offered
from tests.unit.config.test_contradictions import windows

ARM = Platform("windows", "arm64", os_version="10.0.26100")
LINUX = Platform("linux", "amd64")
HEADER = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.h]'
LCOW = ("options = { SandboxIsolation = 1, SandboxPlatform = 'linux/amd64' }",)


def found(host: Platform, *lines: str) -> list[config.Finding]:
    text = "\n".join(["version = 3", HEADER, "runtime_type = 'io.containerd.runhcs.v1'", *lines])
    return list(config.loads(text, filename="f", host=host).handler_platform("h").findings)


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("host", [windows(17763), windows(20348), Platform("windows", "amd64")])
def test_a_linux_sandbox_is_told_its_guest_platform_which_leaves_nothing_to_say(host: Platform, isolation: int) -> None:
    options = f"options = {{ SandboxIsolation = {isolation}, SandboxPlatform = 'linux/amd64' }}"
    [finding] = found(host, options)
    assert finding.hint == 'write guest_platform = { OS = "linux", Architecture = "amd64" }'
    assert found(host, options, finding.hint.removeprefix("write ")) == []


def test_a_sandbox_of_another_processor_is_told_one_that_the_host_runs() -> None:
    [finding] = found(ARM, "options.SandboxPlatform = 'linux/amd64'")
    table, other = finding.hint.removeprefix("write ").split(" and ")
    assert found(ARM, table, f"options.{other}") == []


@pytest.mark.parametrize(
    ("host", "guest", "sandbox"),
    [
        (windows(20348), "OS = 'windows', OSVersion = '10.0.20348'", "linux/amd64"),
        (windows(20348), "OS = 'linux'", "windows/amd64"),
    ],
)
def test_a_declared_platform_that_the_host_runs_is_taken_for_what_was_wanted(
    host: Platform, guest: str, sandbox: str
) -> None:
    table = f"guest_platform = {{ {guest} }}"
    [finding] = found(host, table, "options.SandboxIsolation = 1", f"options.SandboxPlatform = '{sandbox}'")
    option = finding.hint.removeprefix("write ").partition(",")[0]
    assert found(host, table, "options.SandboxIsolation = 1", f"options.{option}") == []


def test_a_declared_platform_that_the_host_does_not_run_is_not_taken_over() -> None:
    guest = "guest_platform = { OS = 'linux', Architecture = 'arm64' }"
    hints = {each.hint for each in found(windows(20348), guest, *LCOW)}
    assert hints == {'write Architecture = "amd64"'}


def test_a_linux_guest_without_a_sandbox_is_told_that_of_the_hosts_processor() -> None:
    [finding] = found(ARM, "guest_platform.OS = 'linux'")
    option = finding.hint.removeprefix("set ")
    assert option == 'options.SandboxPlatform = "linux/arm64"'
    assert found(ARM, "guest_platform.OS = 'linux'", option) == []


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("build", [14393, 17763, 20348, 26100])
def test_the_example_of_a_build_runs_on_the_host(build: int, isolation: int) -> None:
    options = f"options.SandboxIsolation = {isolation}"
    [finding] = found(windows(build), "guest_platform = { OS = 'windows' }", options)
    written = re.search(r'OSVersion = "[0-9.]+"', finding.hint)
    assert written is not None
    assert found(windows(build), f"guest_platform = {{ OS = 'windows', {written[0]} }}", options) == []


# In match


def test_match_tells_a_linux_sandbox_its_guest_platform_and_no_build() -> None:
    wanted = node("windows(10.0.20348)/amd64", "runtime_type = 'io.containerd.runhcs.v1'", *LCOW)
    told = advice(wanted, "linux/amd64", "windows(10.0.17763)/amd64")
    assert 'guest_platform with OS = "linux", Architecture = "amd64"' in told
    assert "OSVersion" not in told
    [remark] = wanted.remarks(offered(wanted, "linux/amd64", "windows(10.0.20348)/amd64"))
    assert 'guest_platform with OS = "linux"' in remark


def test_match_says_nothing_of_it_where_a_platform_is_declared() -> None:
    runhcs = "runtime_type = 'io.containerd.runhcs.v1'"
    wanted = node("windows(10.0.20348)/amd64", runhcs, *LCOW, "guest_platform.OS = 'linux'")
    assert wanted.remarks(offered(wanted, "linux/amd64")) == ()


# Builds


@pytest.mark.parametrize(
    ("version", "near"),
    [("10.0.17703", "10.0.17763"), ("10.0.20384", "10.0.20348"), ("10.0.2610", "10.0.26100"), ("10.0.11111.5", "")],
)
@pytest.mark.parametrize("host", [windows(26200), LINUX])
def test_a_build_of_no_release_is_remarked(host: Platform, version: str, near: str) -> None:
    guest = f"guest_platform = {{ OS = 'windows', Architecture = 'amd64', OSVersion = '{version}' }}"
    notes = [each for each in found(host, guest, "options.SandboxIsolation = 1") if "no release" in each.text]
    assert [(each.severity, each.key) for each in notes] == [
        (config.Severity.NOTE, "runtimes.h.guest_platform.OSVersion")
    ]
    assert version.split(".")[2] in notes[0].text
    assert (f'OSVersion = "{near}"' in notes[0].hint) is bool(near)


@pytest.mark.parametrize("build", [17763, 20348, 26100])
def test_a_build_of_a_release_and_the_hosts_own_are_left_in_peace(build: int) -> None:
    guest = "guest_platform = { OS = 'windows', Architecture = 'amd64', OSVersion = '10.0.%d' }"
    assert found(windows(26200), guest % build, "options.SandboxIsolation = 1") == []
    assert found(windows(26055), guest % 26055, "options.SandboxIsolation = 1") == []
