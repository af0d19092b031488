"""The normal form, row by row."""

from __future__ import annotations

import pytest

from imagestore.platforms import Platform, normalize


@pytest.mark.parametrize(
    ("architecture", "variant", "expected"),
    [
        ("i386", "", ("386", "")),
        ("i386", "v1", ("386", "")),
        ("386", "v1", ("386", "v1")),
        ("x86_64", "", ("amd64", "")),
        ("x86-64", "v1", ("amd64", "")),
        ("AMD64", "V1", ("amd64", "")),
        ("amd64", "1", ("amd64", "1")),
        ("amd64", "v2", ("amd64", "v2")),
        ("aarch64", "", ("arm64", "")),
        ("arm64", "8", ("arm64", "")),
        ("arm64", "v8", ("arm64", "")),
        ("arm64", "v8.0", ("arm64", "")),
        ("arm64", "8.0", ("arm64", "8.0")),
        ("arm64", "8.1", ("arm64", "8.1")),
        ("arm64", "v8.1", ("arm64", "v8.1")),
        ("arm64", "9", ("arm64", "v9")),
        ("arm64", "9.0", ("arm64", "v9")),
        ("arm64", "v9.0", ("arm64", "v9")),
        ("arm64", "v9", ("arm64", "v9")),
        ("armhf", "v8", ("arm", "v7")),
        ("armel", "", ("arm", "v6")),
        ("arm", "", ("arm", "v7")),
        ("arm", "5", ("arm", "v5")),
        ("arm", "6", ("arm", "v6")),
        ("arm", "7", ("arm", "v7")),
        ("arm", "8", ("arm", "v8")),
        ("arm", "4", ("arm", "4")),
        ("i686", "", ("i686", "")),
        ("x86", "", ("x86", "")),
        ("armv7l", "", ("armv7l", "")),
        ("ppc64el", "", ("ppc64el", "")),
        ("loongarch64", "", ("loongarch64", "")),
        ("mips64le", "R6", ("mips64le", "r6")),
        ("riscv64", "rva20u64", ("riscv64", "rva20u64")),
    ],
)
def test_architecture_and_variant_are_translated_together(
    architecture: str, variant: str, expected: tuple[str, str]
) -> None:
    normal = normalize(Platform("linux", architecture, variant))
    assert (normal.architecture, normal.variant) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Linux", "linux"), ("macOS", "darwin"), ("", "freebsd"), ("Windows", "windows"), ("win", "win")],
)
def test_os_is_lower_case_and_an_empty_one_is_the_hosts(name: str, expected: str) -> None:
    assert normalize(Platform(name, "amd64"), host=Platform("freebsd", "arm64")).os == expected


def test_features_are_sorted_without_doubles_and_the_version_is_untouched() -> None:
    normal = normalize(Platform("linux", "amd64", os_version=" 1.X ", os_features=("b", "", "a", "b")))
    assert normal == Platform("linux", "amd64", "", " 1.X ", ("", "a", "b"))


@pytest.mark.parametrize(("name", "expected"), [("\u0391\u03a3", "\u03b1\u03c3"), ("\u0130", "i"), ("Ä", "ä")])
def test_letters_outside_ascii_are_lowered_one_by_one(name: str, expected: str) -> None:
    assert normalize(Platform(name, "amd64")).os == expected
