"""The deliberate differences from containerd: each is listed, and each listed one has its test, here or elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from imagestore.platforms import Platform, default_for, format, format_all, host, only, parse  # noqa: A004

#: Rows of the table in docs/matching.md, and the tests that hold them, relative to tests/unit.
TESTS: Final = {
    "windows-order": "platforms/test_differences.py::test_windows_versions_are_ordered_as_numbers",
    "dot-parts": "platforms/test_differences.py::test_dot_parts_stay_in_the_text_form",
    "short-machine-name": "platforms/test_differences.py::test_short_machine_name_leaves_the_variant_empty",
    "counted-levels": "platforms/test_differences.py::test_huge_level_costs_nothing",
    "unreadable-versions": "config/test_handlers.py::"
    "test_an_unreadable_version_of_the_host_is_refused_whatever_decides_the_platform",
    "declared-platforms": "config/test_handlers.py::test_runtime_platforms_declare_a_platform",
    "unknown-handlers": "config/test_handler_keys.py::test_an_unknown_handler_is_refused_with_the_known_ones",
    "one-matcher": "oci/test_select.py::test_a_node_gets_a_fallback_where_there_is_nothing_better",
    "next-best": "oci/test_select_nested.py::test_where_the_best_index_holds_nothing_that_fits_the_next_entry_is_tried",
    "several-configs": "oci/test_select_nested.py::test_platformless_entries_have_their_turn_in_the_order_of_the_index",
    "versions-by-config": "oci/test_select.py::test_a_version_that_only_the_config_has_decides_where_that_is_asked_for",
    "bounds": "oci/test_select_nested.py::test_indexes_nest_four_deep_and_no_deeper",
    "missing-documents": "oci/test_select.py::"
    "test_an_entry_whose_document_is_missing_is_ruled_out_and_the_next_one_tried",
    "attestations": "oci/test_select.py::test_attestations_and_unknown_platforms_are_never_chosen",
    "other-media-types": "oci/test_select.py::test_entries_that_are_neither_manifest_nor_index_are_refused",
    "strict-documents": "oci/test_decode.py::test_ambiguous_or_unbounded_json_is_refused",
    "single-manifests": "oci/test_select.py::test_single_manifest_that_does_not_fit_is_not_chosen",
}


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


@pytest.mark.parametrize(("identifier", "test"), TESTS.items(), ids=list(TESTS))
def test_listed_difference_names_a_test_that_exists(identifier: str, test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text(encoding="utf-8"), identifier


def test_the_documentation_lists_the_differences_that_have_tests() -> None:
    page = (Path(__file__).parents[3] / "docs" / "matching.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z-]+) \|", page.partition("## Differences from containerd")[2], flags=re.MULTILINE)
    assert rows == ["name", *TESTS]
