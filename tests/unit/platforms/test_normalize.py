"""The normal form, row by row."""

from __future__ import annotations

import pytest

from imagestore.platforms import Platform, normalize
from tests.support import vectors


@pytest.mark.parametrize(
    ("architecture", "variant", "expected"),
    vectors.rows("platforms", "normalize", "architecture", "variant", "normal"),
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
