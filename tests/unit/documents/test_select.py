"""Choosing from an index: which entry, in which order, and the verdict on every other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from imagestore import media_types
from imagestore.descriptor import ATTESTATION_TYPE, ATTESTATION_TYPE_KEY, Descriptor
from imagestore.digest import Digest
from imagestore.documents.index import Index
from imagestore.documents.select import MAX_CONFIGS, MAX_ENTRIES, MAX_INDEXES, Selection, select, select_single
from imagestore.errors import DocumentError
from imagestore.platforms import Matcher, Platform, default_for, everything, only, parse

AMD64 = only(parse("linux/amd64"))


@dataclass
class Documents:
    """A source that remembers what was asked of it."""

    indexes: dict[Digest, Index] = field(default_factory=dict)
    configs: dict[Digest, Platform] = field(default_factory=dict)
    opened: list[Digest] = field(default_factory=list)
    read: list[Digest] = field(default_factory=list)

    def index(self, descriptor: Descriptor) -> Index:
        self.opened.append(descriptor.digest)
        return self.indexes[descriptor.digest]

    def config_platform(self, descriptor: Descriptor) -> Platform | None:
        self.read.append(descriptor.digest)
        return self.configs.get(descriptor.digest)

    def nest(self, name: str, *entries: Descriptor, platform: str = "") -> Descriptor:
        """An entry that leads to an index of these entries."""
        entry = _entry(platform, name=name, media_type=media_types.OCI_INDEX)
        self.indexes[entry.digest] = _index(*entries)
        return entry

    def silent(self, name: str, config: str = "") -> Descriptor:
        """An entry without platform, whose config states one."""
        entry = _entry(name=name)
        if config:
            self.configs[entry.digest] = parse(config)
        return entry


def _entry(platform: str = "", *, name: str = "", media_type: str = media_types.OCI_MANIFEST) -> Descriptor:
    text = name or platform
    return Descriptor(media_type, Digest.of(text.encode()), 7, parse(platform) if platform else None)


def _attestation(platform: str = "unknown/unknown") -> Descriptor:
    return replace(_entry(platform, name="attestation"), annotations={ATTESTATION_TYPE_KEY: ATTESTATION_TYPE})


def _index(*entries: Descriptor) -> Index:
    return Index(b"", media_types.OCI_INDEX, entries)


def _select(*entries: Descriptor, matcher: Matcher = AMD64, documents: Documents | None = None) -> Selection:
    return select(_index(*entries), matcher, documents or Documents(), wanted="linux/amd64")


def _rules(selection: Selection) -> list[str]:
    return [verdict.rule for verdict in selection.verdicts]


def _chosen(selection: Selection) -> tuple[int, ...]:
    assert selection.chosen is not None
    return selection.chosen.position


def test_best_fit_is_chosen_and_every_entry_has_its_verdict() -> None:
    found = _select(_entry("linux/386"), _entry("linux/arm64"), _entry("linux/amd64"), _entry("windows/amd64"))
    assert _chosen(found) == (2,)
    assert _rules(found) == ["match.fallback", "architecture", "match", "os"]
    assert [verdict.rank for verdict in found.verdicts] == [1, None, 0, None]
    assert [verdict.accepted for verdict in found.verdicts] == [True, False, True, False]
    assert found.runner_up is found.verdicts[0]
    assert found.ranked == (found.verdicts[2], found.verdicts[0])
    assert found.offered == ("linux/386", "linux/arm64", "linux/amd64", "windows/amd64")
    assert found.hint == ""
    assert found.wanted == "linux/amd64"


def test_equals_keep_the_order_of_the_index() -> None:
    zstd, gzip = _entry("linux/amd64", name="zstd"), _entry("linux/amd64/v1", name="gzip")
    found = _select(_entry("linux/s390x"), zstd, gzip)
    assert found.chosen is not None
    assert found.chosen.descriptor is zstd
    assert found.runner_up is not None
    assert found.runner_up.descriptor is gzip
    assert _chosen(_select(gzip, zstd)) == (0,)


def test_more_features_win_over_index_order() -> None:
    found = _select(_entry("linux/amd64"), _entry("linux(+a)/amd64"), matcher=only(parse("linux(+a+b)/amd64")))
    assert _chosen(found) == (1,)


def test_nothing_fits() -> None:
    found = _select(_entry("linux/arm64"), _attestation(), matcher=default_for(parse("linux/riscv64")))
    assert found.chosen is None
    assert found.runner_up is None
    assert found.ranked == ()
    assert found.offered == ("linux/arm64",)
    assert "riscv64" in found.hint


def test_hint_names_the_build_that_hyperv_could_run() -> None:
    found = _select(_entry("windows(10.0.17763.1)/amd64"), matcher=default_for(parse("windows(10.0.20348)/amd64")))
    assert found.chosen is None
    assert 'OSVersion = "10.0.17763"' in found.hint


def test_empty_index_offers_nothing() -> None:
    assert _select() == Selection("linux/amd64", (), None)


@pytest.mark.parametrize("matcher", [AMD64, everything()])
def test_attestations_and_unknown_platforms_are_never_chosen(matcher: Matcher) -> None:
    entries = (_attestation("linux/amd64"), _entry("unknown/unknown"), _entry("linux/unknown"), _entry("Unknown/amd64"))
    found = _select(*entries, matcher=matcher)
    assert found.chosen is None
    assert _rules(found) == ["attestation", "unknown-platform", "unknown-platform", "unknown-platform"]
    assert found.offered == ()


def test_attestation_without_platform_costs_no_request() -> None:
    documents = Documents()
    found = _select(replace(_attestation(), platform=None), documents=documents)
    assert (_rules(found), documents.read) == (["attestation"], [])


@pytest.mark.parametrize(
    "media_type", [media_types.OCI_LAYER, media_types.DOCKER_SCHEMA1, "application/json", "x" * 999]
)
def test_entries_that_are_neither_manifest_nor_index_are_refused(media_type: str) -> None:
    found = _select(_entry("linux/amd64", media_type=media_type))
    assert _rules(found) == ["media-type"]
    assert len(found.verdicts[0].reason) < 300


def test_entries_without_platform_are_not_looked_into_when_another_fits() -> None:
    documents = Documents()
    found = _select(
        documents.silent("first", "linux/amd64"),
        documents.nest("index", _entry("linux/amd64")),
        _entry("linux/386"),
        documents=documents,
    )
    assert _chosen(found) == (2,)
    assert _rules(found) == ["not-needed", "not-needed", "match.fallback"]
    assert "config was not read" in found.verdicts[0].reason
    assert "index was not opened" in found.verdicts[1].reason
    assert documents.read == documents.opened == []


def test_entries_without_platform_are_judged_by_their_configs_in_turn() -> None:
    documents = Documents()
    entries = (
        _entry("linux/s390x"),
        documents.silent("a", "windows/amd64"),
        documents.silent("artifact"),
        documents.silent("b", "linux/386"),
        documents.silent("c", "linux/amd64"),
    )
    found = _select(*entries, documents=documents)
    assert _chosen(found) == (3,)
    assert _rules(found) == ["architecture", "os", "no-image-config", "match.fallback", "not-needed"]
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
    found = _select(*entries, documents=documents)
    assert found.chosen is None
    assert len(documents.read) == MAX_CONFIGS
    assert _rules(found) == ["architecture"] * MAX_CONFIGS + ["too-many-configs"]


def test_nested_index_is_gone_into_with_the_same_rules() -> None:
    documents = Documents()
    deep = documents.nest("deep", _entry("linux/386"), _attestation(), _entry("linux/amd64"))
    found = _select(_entry("linux/s390x"), documents.nest("index", _entry("linux/arm64"), deep), documents=documents)
    assert _chosen(found) == (1, 1, 2)
    assert [verdict.position for verdict in found.verdicts] == [(0,), (1, 0), (1, 1, 0), (1, 1, 1), (1, 1, 2)]
    assert _rules(found) == ["architecture", "architecture", "match.fallback", "attestation", "match"]


def test_nested_index_with_fitting_platform_competes_and_with_another_stays_closed() -> None:
    documents = Documents()
    found = _select(
        documents.nest("other", _entry("linux/amd64"), platform="linux/arm64"),
        _entry("linux/386"),
        documents.nest("fitting", _entry("linux/amd64", name="inside"), platform="linux/amd64"),
        documents=documents,
    )
    assert _chosen(found) == (2, 0)
    assert _rules(found) == ["architecture", "match.fallback", "match"]
    assert len(documents.opened) == 1


def test_entries_of_nested_indexes_rank_together() -> None:
    documents = Documents()
    found = _select(
        documents.nest("first", _entry("linux/386")),
        documents.nest("second", _entry("linux/amd64")),
        documents=documents,
    )
    assert _chosen(found) == (1, 0)
    assert found.runner_up is not None
    assert found.runner_up.position == (0, 0)


def test_configs_inside_nested_indexes_are_read_in_index_order() -> None:
    documents = Documents()
    found = _select(
        documents.nest("index", documents.silent("inside", "linux/amd64")),
        documents.silent("outside", "linux/amd64"),
        documents=documents,
    )
    assert _chosen(found) == (0, 0)
    assert _rules(found) == ["match", "not-needed"]


def test_indexes_nest_four_deep_and_no_deeper() -> None:
    documents = Documents()
    entry = _entry("linux/amd64")
    for level in range(3):
        entry = documents.nest(f"level {level}", entry)
    assert _chosen(_select(entry, documents=documents)) == (0, 0, 0, 0)
    with pytest.raises(DocumentError, match="nest deeper"):
        _select(documents.nest("one more", entry), documents=documents)


def test_index_listed_twice_is_refused() -> None:
    documents = Documents()
    nested = documents.nest("index", _entry("linux/arm64"))
    with pytest.raises(DocumentError, match=r"manifests\[1\].*listed twice"):
        _select(nested, nested, documents=documents)


def test_index_that_lists_itself_is_refused() -> None:
    documents = Documents()
    nested = documents.nest("index")
    documents.indexes[nested.digest] = _index(nested)
    with pytest.raises(DocumentError, match="listed twice"):
        _select(nested, documents=documents)


def test_entries_of_all_indexes_are_bounded() -> None:
    documents = Documents()
    half = [_entry("linux/arm64")] * (MAX_ENTRIES // 2)
    nested = documents.nest("index", *half)
    assert len(_select(*half[1:], nested, documents=documents).verdicts) == MAX_ENTRIES - 1
    with pytest.raises(DocumentError, match="more than 10000 entries"):
        _select(*half, nested, documents=documents)


def test_opened_indexes_are_bounded() -> None:
    documents = Documents()
    nested = [documents.nest(f"index {number}") for number in range(MAX_INDEXES + 1)]
    with pytest.raises(DocumentError, match="more than 64 indexes"):
        _select(*nested, documents=documents)
    assert len(documents.opened) == MAX_INDEXES


def test_single_manifest_is_judged_by_its_config() -> None:
    manifest = _entry(name="manifest")
    found = select_single(manifest, parse("linux/386"), AMD64, wanted="linux/amd64")
    assert found.chosen is found.verdicts[0]
    assert found.verdicts[0].position == ()
    assert (found.verdicts[0].rule, found.verdicts[0].rank) == ("match.fallback", 0)


def test_single_manifest_that_does_not_fit_is_not_chosen() -> None:
    found = select_single(_entry(name="manifest"), parse("linux/arm64"), AMD64, wanted="linux/amd64")
    assert found.chosen is None
    assert (found.verdicts[0].rule, found.offered) == ("architecture", ("linux/arm64",))
    assert found.hint


def test_single_artifact_has_no_platform_to_judge() -> None:
    found = select_single(_entry(name="artifact"), None, AMD64, wanted="linux/amd64")
    assert (found.chosen, found.verdicts[0].rule, found.offered, found.hint) == (None, "no-image-config", (), "")
