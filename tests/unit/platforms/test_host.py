"""Host detection from captured facts: other machines than the one at hand."""

from __future__ import annotations

import contextlib
import logging
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagestore.errors import InvalidPlatformError
from imagestore.platforms import Platform, format_all, host
from imagestore.platforms.cpuinfo import amd64_variant, arm_variant, field

_TEXTS = Path(__file__).parents[3] / "fixtures" / "hosts"


def _text(name: str) -> str:
    return (_TEXTS / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "machine", "bits", "expected"),
    [
        ("arm-raspberry-pi-1", "armv6l", 32, "linux/arm/v6"),
        ("arm-cortex-a7", "armv7l", 32, "linux/arm/v7"),
        ("arm-feroceon", "armv5tel", 32, "linux/arm/v5"),
        ("arm-strongarm", "armv4l", 32, "linux/arm/v4"),
        ("arm64-neoverse", "aarch64", 64, "linux/arm64/v8"),
        ("arm64-neoverse", "aarch64", 32, "linux/arm/v8"),
        ("arm64-old-kernel", "aarch64", 64, "linux/arm64/v8"),
        ("amd64-level1", "x86_64", 64, "linux/amd64"),
        ("amd64-epyc-level4", "x86_64", 64, "linux/amd64"),
        ("amd64-level3", "x86_64", 32, "linux/386"),
        ("amd64-level3", "armv7l", 32, "linux/arm/v7"),
        ("amd64-level3", "aarch64", 64, "linux/arm64/v8"),
        ("riscv64", "riscv64", 64, "linux/riscv64"),
    ],
)
def test_linux_from_cpuinfo_and_machine_name(name: str, machine: str, bits: int, expected: str) -> None:
    found = host.detect(host.Facts("linux", machine, cpuinfo=_text(name), bits=bits))
    assert format_all(found) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("amd64-level1", ""),
        ("amd64-level2", "v2"),
        ("amd64-level3", "v3"),
        ("amd64-epyc-level4", "v4"),
        ("riscv64", ""),
    ],
)
def test_amd64_level_is_there_on_request(name: str, expected: str) -> None:
    assert amd64_variant(_text(name)) == expected
    found = host.detect(host.Facts("linux", "x86_64", cpuinfo=_text(name)), with_amd64_level=True)
    assert found == Platform("linux", "amd64", expected)
    assert host.detect(host.Facts("linux", "x86_64", cpuinfo=_text(name))).variant == ""


def test_a_32_bit_program_has_no_level() -> None:
    found = host.detect(host.Facts("linux", "x86_64", cpuinfo=_text("amd64-level3"), bits=32), with_amd64_level=True)
    assert found == Platform("linux", "386")


def test_level_needs_every_flag_of_the_levels_below() -> None:
    flags = _text("amd64-epyc-level4").replace(" popcnt", "")
    assert amd64_variant(flags) == ""
    assert amd64_variant("flags: ") == ""


def test_other_systems_have_no_level() -> None:
    text = _text("amd64-epyc-level4")
    assert host.detect(host.Facts("freebsd14", "amd64", cpuinfo=text), with_amd64_level=True).variant == ""


@pytest.mark.parametrize(
    ("value", "variant"),
    [
        ("8", "v8"),
        ("AArch64", "v8"),
        ("7", "v7"),
        ("7M", "v7"),
        ("?(12)", "v7"),
        ("?(17)", "v7"),
        ("?(11)", "unknown"),
        ("?(18)", "unknown"),
        ("6", "v6"),
        ("6TEJ", "v6"),
        ("5", "v5"),
        ("5T", "v5"),
        ("5TE", "v5"),
        ("5TEJ", "v5"),
        ("4", "v4"),
        ("4T", "v4"),
        ("3", "v3"),
        ("9", "unknown"),
        ("", "unknown"),
        ("v8", "unknown"),
    ],
)
def test_arm_variant_from_the_architecture_line(value: str, variant: str) -> None:
    assert arm_variant(f"processor: 0\n cpu ARCHITECTURE \t:\t{value} : x\r\n", "", is_32bit=True) == variant


@pytest.mark.parametrize(
    ("machine", "variant"),
    [
        ("aarch64", "v8"),
        ("AARCH64", "v8"),
        ("armv8l", "v8"),
        ("armv7l", "v7"),
        ("armv7", "v7"),
        ("armv6l", "v6"),
        ("armv5tejl", "v5"),
        ("armv4tl", "v4"),
        ("armv3", "v3"),
        ("armv9l", "unknown"),
        ("armvx", "unknown"),
        ("armv", None),
        ("arm64", None),
        ("x86_64", None),
        ("arm", None),
        ("", None),
    ],
)
def test_arm_variant_from_the_machine_name_when_cpuinfo_is_silent(machine: str, variant: str | None) -> None:
    assert arm_variant("processor : 0\n", machine, is_32bit=False) == variant


def test_first_raspberry_pi_lies_only_to_32_bit_programs() -> None:
    text = _text("arm-raspberry-pi-1")
    assert arm_variant(text, "armv6l", is_32bit=True) == "v6"
    assert arm_variant(text, "armv6l", is_32bit=False) == "v7"
    assert arm_variant(text.replace("7 (v6l)", "7").replace("ARMv6", "armV6"), "", is_32bit=True) == "v6"


def test_first_line_of_a_key_counts() -> None:
    assert field("a: 1\nb\nA : 2\n", "a") == "1"
    assert field("ab: 1\n", "a") is None


@pytest.mark.parametrize(("cpuinfo", "machine"), [(None, "aarch64"), ("", "arm64")])
def test_unknown_variant_is_empty_and_logged(
    cpuinfo: str | None, machine: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="imagestore"):
        assert host.detect(host.Facts("linux", machine, cpuinfo=cpuinfo)) == Platform("linux", "arm64")
    assert "ARM variant" in caplog.text


@pytest.mark.parametrize(
    ("system", "machine", "bits", "byte_order", "expected"),
    [
        ("Linux", "i686", 32, "little", "linux/386"),
        ("linux2", "x86_64", 64, "little", "linux/amd64"),
        ("linux", "ppc64", 64, "big", "linux/ppc64"),
        ("linux", "ppc64", 64, "little", "linux/ppc64le"),
        ("linux", "ppc64le", 64, "little", "linux/ppc64le"),
        ("linux", "s390x", 64, "big", "linux/s390x"),
        ("linux", "loongarch64", 64, "little", "linux/loong64"),
        ("linux", "mips", 32, "big", "linux/mips"),
        ("linux", "mips", 32, "little", "linux/mipsle"),
        ("linux", "mips64", 64, "little", "linux/mips64le"),
        ("linux", "mips64", 32, "little", "linux/mipsle"),
        ("linux", "sparc64", 64, "big", "linux/sparc64"),
        ("linux", "aarch64_be", 64, "big", "linux/arm64be"),
        ("linux", "armv7b", 32, "big", "linux/armbe"),
        ("linux", "armv8l", 64, "little", "linux/arm64/v8"),
        ("linux", "vax", 32, "little", "linux/vax"),
        ("linux", "sw_64", 64, "little", "linux/sw_64"),
        ("linux", "ia64", 64, "little", "linux/ia64"),
        ("linux", "sh86", 32, "little", "linux/sh86"),
        ("Darwin", "arm64", 64, "little", "darwin/arm64/v8"),
        ("darwin", "x86_64", 64, "little", "darwin/amd64"),
        ("ios", "arm64", 64, "little", "ios/arm64"),
        ("android", "aarch64", 64, "little", "android/arm64/v8"),
        ("FreeBSD", "amd64", 64, "little", "freebsd/amd64"),
        ("freebsd14", "arm64", 64, "little", "freebsd/arm64/v8"),
        ("freebsd14", "arm", 32, "little", "freebsd/arm/unknown"),
        ("freebsd14", "powerpc", 32, "big", "freebsd/ppc"),
        ("freebsd14", "i386", 32, "little", "freebsd/386"),
        ("openbsd7", "arm64", 64, "little", "openbsd/arm64"),
        ("netbsd10", "evbarm", 32, "little", "netbsd/arm"),
        ("dragonfly6", "x86_64", 64, "little", "dragonfly/amd64"),
        ("SunOS", "i86pc", 64, "little", "solaris/amd64"),
        ("aix", "00C8B1234C00", 64, "big", "aix/ppc64"),
        ("GNU", "i686", 32, "little", "hurd/386"),
        ("emscripten", "wasm32", 32, "little", "js/wasm"),
        ("haiku1", "x86_64", 64, "little", "haiku1/amd64"),
    ],
)
def test_names_are_gos(system: str, machine: str, bits: int, byte_order: str, expected: str) -> None:
    found = host.detect(host.Facts(system, machine, cpuinfo="", bits=bits, byte_order=byte_order))
    assert format_all(found) == expected


@pytest.mark.parametrize("version", ["illumos-2ff0a5c", "omnios-r151046", "joyent_20240101T000000Z"])
def test_illumos_is_told_by_its_kernel(version: str) -> None:
    assert host.detect(host.Facts("sunos5", "i86pc", kernel_version=version)).os == "illumos"
    assert host.detect(host.Facts("sunos5", "i86pc", kernel_version="11.4.42")).os == "solaris"


@pytest.mark.parametrize(
    ("machine", "version", "expected"),
    [
        ("AMD64", (10, 0, 20348), "windows(10.0.20348)/amd64"),
        ("ARM64", (10, 0, 26100), "windows(10.0.26100)/arm64/v8"),
        ("ARM", (10, 0, 17763), "windows(10.0.17763)/arm/v7"),
        ("x86", (10, 0, 19045), "windows(10.0.19045)/386"),
        ("AMD64", (10, 0, 17763, 2, "Service Pack"), "windows(10.0.17763)/amd64"),
        ("AMD64", None, "windows/amd64"),
    ],
)
def test_windows_has_its_build_without_revision(machine: str, version: tuple[int, ...] | None, expected: str) -> None:
    found = host.detect(host.Facts("win32", machine, windows_version=version, windows_revision=1970))
    assert format_all(found) == expected


def test_windows_revision_is_there_on_request() -> None:
    facts = host.Facts("Windows", "AMD64", windows_version=(10, 0, 20348), windows_revision=1970)
    found = host.detect(facts, with_windows_revision=True)
    assert found.os_version == "10.0.20348.1970"
    without = host.detect(host.Facts("win32", "AMD64", windows_version=(10, 0, 20348)), with_windows_revision=True)
    assert without.os_version == "10.0.20348"


def test_another_machine_borrows_nothing_from_this_one() -> None:
    assert host.detect(host.Facts("win32", "AMD64")).os_version == ""
    assert host.detect(host.Facts("linux", "x86_64"), with_amd64_level=True).variant == ""


def test_this_machine_is_looked_at_once_and_has_the_names_of_its_kind() -> None:
    found = host.detect()
    assert found is host.detect()
    assert found.os == {"linux": "linux", "darwin": "darwin", "win32": "windows"}.get(sys.platform, found.os)
    assert found.architecture
    assert host.detect(host.this_machine()) == found


@pytest.mark.parametrize(
    ("machine", "byte_order", "expected"),
    [
        *(("i686", "little", "amd64"), ("i386", "little", "amd64"), ("x86_64", "little", "amd64")),
        *(("armv8l", "little", "arm64"), ("armv7l", "little", "arm"), ("riscv32", "little", "riscv64")),
        *(("ppcle", "little", "ppc64le"), ("ppc", "big", "ppc64"), ("mips", "little", "mips64le")),
        *(("s390", "big", "s390x"), ("sparc", "big", "sparc64")),
    ],
)
def test_a_64_bit_program_is_told_apart_where_the_kernel_plays_a_32_bit_one(
    machine: str, byte_order: str, expected: str
) -> None:
    # As linux32 and setarch ask of it: containerd's programs know what they were built for.
    assert host.detect(host.Facts("linux", machine, bits=64, byte_order=byte_order)).architecture == expected
    assert host.detect(host.Facts("linux", "i686")).architecture == "386"


def test_facts_of_this_machine_can_be_replaced_one_by_one() -> None:
    facts = host.this_machine()
    if host.detect(facts) != Platform("linux", "amd64"):
        pytest.skip("needs a Linux machine with amd64")
    assert facts.cpuinfo is None, "read only where it tells something"
    level = host.detect(replace(facts, cpuinfo=_text("amd64-level2")), with_amd64_level=True)
    assert level == Platform("linux", "amd64", "v2")
    here = host.this_machine(with_cpuinfo=True)
    assert host.detect(with_amd64_level=True) == host.detect(here, with_amd64_level=True)
    assert host.detect(replace(facts, bits=32)) == Platform("linux", "386")


@pytest.mark.parametrize(
    "version",
    [
        *((), (10,), (10, 0), "abc", "10.0.20348", 20348, None.__class__),
        *((10, 0, -1), (-10, 0, 1), (256, 0, 1), (10, 256, 1), (10, 0, 65536), (10, 0, 10**5000)),
        *(("10", "0", "20348"), (10, 0, None), (10, 0, 20348.0), (10, 0, True)),
    ],
)
def test_a_windows_version_that_is_none_is_refused(version: Any) -> None:
    with pytest.raises(InvalidPlatformError, match="windows") as caught:
        host.detect(host.Facts("win32", "AMD64", windows_version=version))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("shown", "of_kernel32", "expected"),
    [
        ((10, 0, 26200), (10, 0, 26100), "windows(10.0.26200.7171)/amd64"),  # an enablement package changes few files
        ((6, 2, 9200), (10, 0, 20348), "windows(10.0.20348.7171)/amd64"),  # a program without manifest
        ((10, 0, 17763), (10, 0, 17763), "windows(10.0.17763.7171)/amd64"),
    ],
)
def test_a_windows_machine_has_the_newer_of_two_versions(
    shown: tuple[int, ...], of_kernel32: tuple[int, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Version(tuple[object, ...]):
        platform_version = of_kernel32

    registry = types.SimpleNamespace(
        HKEY_LOCAL_MACHINE=1, OpenKey=lambda *_: contextlib.nullcontext(), QueryValueEx=lambda *_: (7171, 4)
    )
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "getwindowsversion", lambda: Version((*shown, 2, "")), raising=False)
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setenv("PROCESSOR_ARCHITECTURE", "AMD64")
    assert format_all(host.detect(with_windows_revision=True)) == expected


@pytest.mark.parametrize("revision", [-1, 2**32, "1", 1.5, True])
def test_a_windows_revision_that_is_none_is_refused(revision: Any) -> None:
    facts = host.Facts("win32", "AMD64", windows_version=(10, 0, 20348), windows_revision=revision)
    with pytest.raises(InvalidPlatformError, match="windows revision"):
        host.detect(facts, with_windows_revision=True)
