"""Choosing where indexes nest, and where entries say nothing about their platform."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagestore.errors import DocumentError, RegistryUnavailableError
from imagestore.oci.select import MAX_CONFIGS, MAX_ENTRIES, MAX_INDEXES
from imagestore.platforms import Platform, default_for, parse
from tests.unit.oci.choosing import (
    Documents,
    attestation_for,
    chosen_by,
    entry_for,
    index_of,
    rules_of,
    select_from,
)


def test_entries_without_platform_are_not_looked_into_when_another_fits() -> None:
    documents = Documents()
    found = select_from(
        documents.silent("first", "linux/amd64"),
        documents.nest("index", entry_for("linux/amd64")),
        entry_for("linux/386"),
        documents=documents,
    )
    assert chosen_by(found) == (2,)
    assert rules_of(found) == ["not-needed", "not-needed", "match.fallback"]
    assert "config was not read" in found.verdicts[0].reason
    assert "index was not opened" in found.verdicts[1].reason
    assert documents.read == documents.opened == []


def test_entries_without_platform_are_judged_by_their_configs_in_turn() -> None:
    documents = Documents()
    entries = (
        entry_for("linux/s390x"),
        documents.silent("a", "windows/amd64"),
        documents.silent("artifact"),
        documents.silent("b", "linux/386"),
        documents.silent("c", "linux/amd64"),
    )
    found = select_from(*entries, documents=documents)
    assert chosen_by(found) == (3,)
    assert rules_of(found) == ["architecture", "os", "no-image-config", "match.fallback", "not-needed"]
    assert [digest in documents.read for digest in (entries[3].digest, entries[4].digest)] == [True, False]
    assert found.verdicts[1].reason.startswith("by its config: ")
    assert found.verdicts[1].platform == Platform("windows", "amd64")
    assert found.chosen is not None
    assert found.chosen.rank == 0
    assert found.offered == ("linux/s390x", "windows/amd64", "linux/386")


def test_configs_are_read_up_to_a_bound() -> None:
    documents = Documents()
    entries = [documents.silent(str(number), "linux/arm64") for number in range(MAX_CONFIGS)]
    entries.append(documents.silent("last", "linux/amd64"))
    found = select_from(*entries, documents=documents)
    assert found.chosen is None
    assert len(documents.read) == MAX_CONFIGS
    assert rules_of(found) == ["architecture"] * MAX_CONFIGS + ["too-many-configs"]


def test_nested_index_is_gone_into_with_the_same_rules() -> None:
    documents = Documents()
    deep = documents.nest("deep", entry_for("linux/386"), attestation_for(), entry_for("linux/amd64"))
    found = select_from(
        entry_for("linux/s390x"), documents.nest("index", entry_for("linux/arm64"), deep), documents=documents
    )
    assert chosen_by(found) == (1, 1, 2)
    assert [verdict.position for verdict in found.verdicts] == [(0,), (1, 0), (1, 1, 0), (1, 1, 1), (1, 1, 2)]
    assert rules_of(found) == ["architecture", "architecture", "match.fallback", "attestation", "match"]


def test_nested_index_with_fitting_platform_competes_and_with_another_stays_closed() -> None:
    documents = Documents()
    found = select_from(
        documents.nest("other", entry_for("linux/amd64"), platform="linux/arm64"),
        entry_for("linux/386"),
        documents.nest("fitting", entry_for("linux/amd64", name="inside"), platform="linux/amd64"),
        documents=documents,
    )
    assert chosen_by(found) == (2, 0)
    assert rules_of(found) == ["architecture", "match.fallback", "match"]
    assert len(documents.opened) == 1


def test_entries_next_to_the_chosen_one_in_a_nested_index_come_next_then_those_outside() -> None:
    documents = Documents()
    found = select_from(
        entry_for("linux/386"),
        documents.nest(
            "index", entry_for("linux/386", name="inside"), entry_for("linux/amd64"), platform="linux/amd64"
        ),
        documents=documents,
    )
    assert [verdict.position for verdict in found.ranked] == [(1, 1), (1, 0), (0,)]


def test_a_fitting_manifest_leaves_every_index_closed() -> None:
    documents = Documents()
    broken = documents.lost(
        documents.nest("broken", platform="linux/386"), RegistryUnavailableError("connection refused")
    )
    deep = entry_for("linux/amd64", name="deep")
    for level in range(6):
        deep = documents.nest(f"level {level}", deep, platform="linux/386" if level == 5 else "")
    found = select_from(entry_for("linux/amd64"), broken, deep, documents=documents)
    assert (chosen_by(found), documents.opened) == ((0,), [])
    assert [(verdict.accepted, verdict.rank) for verdict in found.verdicts] == [(True, 0), (True, 1), (True, 2)]
    assert found.verdicts[1].reason.endswith("; the index was not opened, since another entry comes first")


def test_an_index_that_fails_is_an_error_when_its_turn_comes() -> None:
    documents = Documents()
    refused = RegistryUnavailableError("connection refused")
    best = documents.lost(documents.nest("best", platform="linux/amd64"), refused)
    with pytest.raises(RegistryUnavailableError):
        select_from(best, entry_for("linux/386"), documents=documents)
    silent = documents.lost(documents.silent("silent"), refused)
    with pytest.raises(RegistryUnavailableError):
        select_from(silent, documents.silent("b", "linux/amd64"), documents=documents)


def test_where_the_best_index_holds_nothing_that_fits_the_next_entry_is_tried() -> None:
    documents = Documents()
    found = select_from(
        entry_for("linux/386"),
        documents.nest("best", entry_for("linux/arm64"), platform="linux/amd64"),
        documents.nest("empty", platform="linux/amd64/v1"),
        documents=documents,
    )
    assert chosen_by(found) == (0,)
    assert [(verdict.position, verdict.rule) for verdict in found.verdicts] == [
        ((0,), "match.fallback"),
        ((1, 0), "architecture"),
        ((2,), "empty-index"),
    ]
    assert found.offered == ("linux/386", "linux/arm64")


def test_one_index_listed_for_two_variants_is_opened_once() -> None:
    documents = Documents()
    inside = entry_for("linux/arm/v7")
    seventh = documents.nest("arm", inside, platform="linux/arm/v7")
    sixth = replace(seventh, platform=parse("linux/arm/v6"))
    found = select_from(sixth, seventh, matcher=default_for(parse("linux/arm/v7")), documents=documents)
    assert (chosen_by(found), len(documents.opened)) == ((1, 0), 1)
    assert found.runner_up is found.verdicts[0]


def test_an_index_listed_twice_is_looked_into_once() -> None:
    documents = Documents()
    nested = documents.nest("index", entry_for("linux/arm64"))
    found = select_from(nested, nested, documents=documents)
    assert (found.chosen, len(documents.opened)) == (None, 1)
    assert rules_of(found) == ["architecture", "listed-before"]
    assert found.verdicts[1].reason == "is the same index as entry 0, which was looked into already"


def test_platformless_entries_have_their_turn_in_the_order_of_the_index() -> None:
    documents = Documents()
    index = documents.nest("index", entry_for("linux/amd64", name="inside"))
    for entries, chosen in (
        ((documents.silent("a", "linux/386"), index), (0,)),
        ((index, documents.silent("a", "linux/386")), (0, 0)),
        ((documents.silent("other", "linux/arm64"), index, documents.silent("a", "linux/amd64")), (1, 0)),
    ):
        assert chosen_by(select_from(*entries, documents=documents)) == chosen


def test_configs_inside_nested_indexes_are_read_in_index_order() -> None:
    documents = Documents()
    found = select_from(
        documents.nest("index", documents.silent("inside", "linux/amd64")),
        documents.silent("outside", "linux/amd64"),
        documents=documents,
    )
    assert chosen_by(found) == (0, 0)
    assert rules_of(found) == ["match", "not-needed"]


def test_indexes_nest_four_deep_and_no_deeper() -> None:
    documents = Documents()
    entry = entry_for("linux/amd64")
    for level in range(3):
        entry = documents.nest(f"level {level}", entry)
    assert chosen_by(select_from(entry, documents=documents)) == (0, 0, 0, 0)
    with pytest.raises(DocumentError, match="nest deeper"):
        select_from(documents.nest("one more", entry), documents=documents)


def test_index_that_lists_itself_ends() -> None:
    documents = Documents()
    nested = documents.nest("index")
    documents.indexes[nested.digest] = index_of(nested)
    found = select_from(nested, documents=documents)
    assert [(verdict.position, verdict.rule) for verdict in found.verdicts] == [((0, 0), "listed-before")]


def test_entries_of_all_indexes_are_bounded() -> None:
    documents = Documents()
    half = [entry_for("linux/arm64")] * (MAX_ENTRIES // 2)
    nested = documents.nest("index", *half)
    assert len(select_from(*half[1:], nested, documents=documents).verdicts) == MAX_ENTRIES - 1
    with pytest.raises(DocumentError, match="more than 10000 entries"):
        select_from(*half, nested, documents=documents)


def test_opened_indexes_are_bounded() -> None:
    documents = Documents()
    nested = [documents.nest(f"index {number}") for number in range(MAX_INDEXES + 1)]
    with pytest.raises(DocumentError, match="more than 64 indexes"):
        select_from(*nested, documents=documents)
    assert len(documents.opened) == MAX_INDEXES
