"""The deliberate differences from containerd: each is listed, and each listed one has its test, here or elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore.platforms import Platform, default_for, format, format_all, host, only, parse  # noqa: A004
from imagestore.platforms.differences import DIFFERENCES, Difference


def test_windows_versions_are_ordered_as_numbers() -> None:
    node = default_for(parse("windows(10.0.20348)/amd64"))
    newer, older = parse("windows(10.0.20348.1970)/amd64"), parse("windows(10.0.20348.999)/amd64")
    assert node.prefers(newer, older)
    assert not node.prefers(older, newer)


@pytest.mark.parametrize("variant", [".", ".."])
def test_dot_parts_stay_in_the_text_form(variant: str) -> None:
    platform = Platform("linux", "amd64", variant, "1")
    assert format(platform) == f"linux/amd64/{variant}"
    assert format_all(platform) == f"linux(1)/amd64/{variant}"
    assert parse(format_all(platform)) == platform


@pytest.mark.parametrize("machine", ["arm", "a", ""])
def test_short_machine_name_leaves_the_variant_empty(machine: str) -> None:
    assert host.detect(host.Facts("linux", machine, cpuinfo="processor: 0")).variant == ""


def test_huge_level_costs_nothing() -> None:
    matcher = only(Platform("linux", "amd64", "v999999999999"))
    assert matcher.match(Platform("linux", "amd64", "v3"))
    assert matcher.prefers(Platform("linux", "amd64", "v4"), Platform("linux", "amd64", "v3"))
    assert matcher.prefers(Platform("linux", "amd64"), Platform("linux", "386"))


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda each: each.identifier)
def test_listed_difference_names_a_test_that_exists(difference: Difference) -> None:
    file, _, name = difference.test.partition("::")
    assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    assert difference.upstream
    assert difference.here
    assert difference.because
