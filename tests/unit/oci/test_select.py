"""Choosing from an index: which entry, in which order, and the verdict on every other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagestore import Descriptor
from imagestore.oci import media_types
from imagestore.oci.select import MAX_CONFIGS, Selection, select, select_each, select_single
from imagestore.platforms import Matcher, default_for, everything, only, parse
from tests.unit.oci.choosing import (
    AMD64,
    Documents,
    attestation_for,
    chosen_by,
    entry_for,
    index_of,
    rules_of,
    select_from,
)


def test_best_fit_is_chosen_and_every_entry_has_its_verdict() -> None:
    found = select_from(
        entry_for("linux/386"), entry_for("linux/arm64"), entry_for("linux/amd64"), entry_for("windows/amd64")
    )
    assert chosen_by(found) == (2,)
    assert rules_of(found) == ["match.fallback", "architecture", "match", "os"]
    assert [verdict.rank for verdict in found.verdicts] == [1, None, 0, None]
    assert [verdict.accepted for verdict in found.verdicts] == [True, False, True, False]
    assert found.runner_up is found.verdicts[0]
    assert found.ranked == (found.verdicts[2], found.verdicts[0])
    assert found.offered == ("linux/386", "linux/arm64", "linux/amd64", "windows/amd64")
    assert found.hint == ""
    assert found.wanted == "linux/amd64"


def test_equals_keep_the_order_of_the_index() -> None:
    zstd, gzip = entry_for("linux/amd64", name="zstd"), entry_for("linux/amd64/v1", name="gzip")
    found = select_from(entry_for("linux/s390x"), zstd, gzip)
    assert found.chosen is not None
    assert found.chosen.descriptor is zstd
    assert found.runner_up is not None
    assert found.runner_up.descriptor is gzip
    assert chosen_by(select_from(gzip, zstd)) == (0,)


def test_a_node_gets_a_fallback_where_there_is_nothing_better() -> None:
    node = default_for(parse("linux/arm64/v8"))
    found = select_from(entry_for("linux/amd64"), entry_for("linux/arm/v5"), entry_for("linux/arm/v7"), matcher=node)
    assert chosen_by(found) == (2,)


def test_more_features_win_over_index_order() -> None:
    found = select_from(
        entry_for("linux/amd64"), entry_for("linux(+a)/amd64"), matcher=only(parse("linux(+a+b)/amd64"))
    )
    assert chosen_by(found) == (1,)


def test_nothing_fits() -> None:
    found = select_from(entry_for("linux/arm64"), attestation_for(), matcher=default_for(parse("linux/riscv64")))
    assert found.chosen is None
    assert found.runner_up is None
    assert found.ranked == ()
    assert found.offered == ("linux/arm64",)
    assert found.hint == ""


def test_empty_index_offers_nothing() -> None:
    found = select_from()
    assert found == Selection("linux/amd64", (), None)
    assert found.hint == "the index lists no entries"


@pytest.mark.parametrize("matcher", [AMD64, everything()])
def test_attestations_and_unknown_platforms_are_never_chosen(matcher: Matcher) -> None:
    entries = (
        attestation_for("linux/amd64"),
        entry_for("unknown/unknown"),
        entry_for("linux/unknown"),
        entry_for("Unknown/amd64"),
    )
    found = select_from(*entries, matcher=matcher)
    assert found.chosen is None
    assert rules_of(found) == ["attestation", "unknown-platform", "unknown-platform", "unknown-platform"]
    assert found.offered == ()


def test_attestation_without_platform_costs_no_request() -> None:
    documents = Documents()
    found = select_from(replace(attestation_for(), platform=None), documents=documents)
    assert (rules_of(found), documents.read) == (["attestation"], [])


@pytest.mark.parametrize(
    "media_type", [media_types.OCI_LAYER, media_types.DOCKER_SCHEMA1, "application/json", "x" * 999]
)
def test_entries_that_are_neither_manifest_nor_index_are_refused(media_type: str) -> None:
    found = select_from(entry_for("linux/amd64", media_type=media_type))
    assert rules_of(found) == ["media-type"]
    assert len(found.verdicts[0].reason) < 300


def test_an_entry_whose_document_is_missing_is_ruled_out_and_the_next_one_tried() -> None:
    documents = Documents()
    silent, nested = documents.lost(documents.silent("silent")), documents.lost(documents.nest("nested"))
    best = documents.lost(documents.nest("best", platform="linux/amd64"))
    found = select_from(silent, nested, documents.silent("here", "linux/amd64"), best, documents=documents)
    assert chosen_by(found) == (2,)
    assert rules_of(found) == ["document-missing", "document-missing", "match", "document-missing"]
    assert [verdict.accepted for verdict in found.verdicts] == [False, False, True, False]
    assert f"manifest {silent.digest}" in found.verdicts[0].reason
    assert f"index {nested.digest}" in found.verdicts[1].reason
    assert found.hint == ""


def test_where_nothing_else_fits_the_hint_names_the_missing_document() -> None:
    documents = Documents()
    silent, nested = documents.lost(documents.silent("silent")), documents.lost(documents.nest("nested"))
    found = select_from(entry_for("linux/arm64"), silent, nested, documents=documents)
    assert (found.chosen, found.offered) == (None, ("linux/arm64",))
    assert found.hint.startswith("entry 1 was not judged (and 1 more): has to be judged by a document that is missing")
    assert str(silent.digest) in found.hint


def test_several_matchers_share_the_work_and_get_what_each_would_get_alone() -> None:
    documents = Documents()
    entries = (
        attestation_for("linux/amd64"),
        entry_for("linux/amd64", name="first"),
        entry_for("linux/amd64", name="second"),
        documents.nest("nested", entry_for("linux/s390x"), documents.silent("silent", "linux/riscv64")),
    )
    wanted = {text: (only(parse(text)), text) for text in ("linux/amd64", "linux/s390x", "linux/riscv64", "wasi/wasm")}
    found = select_each(index_of(*entries), wanted, documents)
    assert len(documents.opened) == 1
    for name, (matcher, text) in wanted.items():
        assert found[name] == select(index_of(*entries), matcher, documents, wanted=text)
    assert [each.chosen and each.chosen.position for each in found.values()] == [(1,), (3, 0), (3, 1), None]


def test_a_version_that_only_the_config_has_decides_where_that_is_asked_for() -> None:
    documents = Documents()
    newer, older, unknown = (entry_for("windows/amd64", name=name) for name in ("newer", "older", "unknown"))
    documents.configs[newer.digest] = parse("windows(10.0.20348.1)/amd64")
    documents.configs[older.digest] = parse("windows(10.0.17763.1)/amd64")
    matcher = default_for(parse("windows(10.0.17763)/amd64"))
    exact = entry_for("windows(10.0.17763.5)/amd64", name="exact")

    def chosen(*entries: Descriptor, judges_versions: bool = True) -> Selection:
        found = select(index_of(*entries), matcher, documents, wanted="w", judges_versions=judges_versions)
        (again,) = select_each(
            index_of(*entries), {"h": (matcher, "w")}, documents, judging_versions={"h"} if judges_versions else ()
        ).values()
        assert again == found
        return found

    assert chosen_by(chosen(newer, older, judges_versions=False)) == (0,)
    found = chosen(newer, older)
    assert chosen_by(found) == (1,)
    assert rules_of(found) == ["os.version.build-exact", "match"]
    assert found.offered == ("windows(10.0.20348.1)/amd64", "windows(10.0.17763.1)/amd64")
    assert chosen(newer).chosen is None
    # A config that has no version, or isn't at hand, leaves the index its word.
    documents.configs[unknown.digest] = parse("windows/amd64")
    assert chosen_by(chosen(newer, unknown)) == (1,)
    assert chosen_by(chosen(newer, documents.lost(entry_for("windows/amd64", name="lost")))) == (1,)
    # What is at hand goes before: an archive has the entry that was chosen when all could be read, and no other.
    lost = documents.lost(entry_for("windows/amd64", name="gone"))
    found = chosen(lost, older)
    assert (chosen_by(found), [each.rank for each in found.verdicts]) == ((1,), [1, 0])
    assert chosen_by(chosen(lost, unknown)) == (1,)
    documents.read.clear()
    assert chosen_by(chosen(newer, exact)) == (1,)
    assert documents.read == []
    assert chosen_by(chosen(documents.nest("nested", newer, older, platform="windows/amd64"), newer)) == (0, 1)


def test_no_more_configs_are_read_for_their_versions_than_for_platforms() -> None:
    documents = Documents()
    entries = [entry_for("windows/amd64", name=str(number)) for number in range(MAX_CONFIGS + 1)]
    documents.configs = {entry.digest: parse("windows(10.0.20348.1)/amd64") for entry in entries}
    matcher = default_for(parse("windows(10.0.17763)/amd64"))
    found = select(index_of(*entries), matcher, documents, wanted="w", judges_versions=True)
    assert (found.chosen, len(documents.read)) == (None, MAX_CONFIGS)
    assert found.verdicts[-1].reason.startswith("states no version, and the configs of 16 entries")


def test_a_feature_that_a_config_states_twice_counts_once() -> None:
    # containerd compares a config in normal form, and an index entry as it stands.
    twice = parse("windows(10.0.20348+win32k+win32k)/amd64")
    node = default_for(parse("windows(10.0.20348)/amd64"))
    documents = Documents()
    silent = documents.silent("silent", "windows(10.0.20348+win32k+win32k)/amd64")
    found = select_from(silent, matcher=node, documents=documents)
    assert chosen_by(found) == (0,)
    assert found.offered == ("windows(10.0.20348+win32k)/amd64",)
    assert found.verdicts[0].platform == twice
    assert select_single(silent, twice, node, wanted="").chosen is not None
    assert select_from(entry_for("windows(10.0.20348+win32k+win32k)/amd64"), matcher=node).chosen is None


def test_single_manifest_is_judged_by_its_config() -> None:
    manifest = entry_for(name="manifest")
    found = select_single(manifest, parse("linux/386"), AMD64, wanted="linux/amd64")
    assert found.chosen is found.verdicts[0]
    assert found.verdicts[0].position == ()
    assert (found.verdicts[0].rule, found.verdicts[0].rank) == ("match.fallback", 0)


def test_single_manifest_that_does_not_fit_is_not_chosen() -> None:
    found = select_single(entry_for(name="manifest"), parse("linux/arm64"), AMD64, wanted="linux/amd64")
    assert found.chosen is None
    assert (found.verdicts[0].rule, found.offered) == ("architecture", ("linux/arm64",))
    assert found.verdicts[0].place == "-"


def test_single_artifact_has_no_platform_to_judge() -> None:
    found = select_single(entry_for(name="artifact"), None, AMD64, wanted="linux/amd64")
    assert (found.chosen, found.verdicts[0].rule, found.offered, found.hint) == (None, "no-image-config", (), "")


def test_the_chosen_verdict_is_the_one_in_the_list() -> None:
    found = select_from(entry_for("linux/386"), entry_for("linux/amd64"))
    assert found.chosen is found.verdicts[1]
    assert found.verdicts is found.verdicts


def test_selections_are_equal_however_their_verdicts_came_about() -> None:
    made_when_read = select_from(entry_for("linux/386"), entry_for("linux/amd64"))
    given = Selection("linux/amd64", made_when_read.verdicts, made_when_read.chosen)
    assert given == made_when_read
    assert hash(given) == hash(made_when_read)
    assert repr(given) == repr(made_when_read)
    assert given != replace(given, wanted="other")
    assert given != "linux/amd64"
