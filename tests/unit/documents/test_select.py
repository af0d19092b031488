"""Choosing from an index: which entry, in which order, and the verdict on every other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from imagestore import media_types
from imagestore.descriptor import ATTESTATION_TYPE, ATTESTATION_TYPE_KEY, Descriptor
from imagestore.digest import Digest
from imagestore.documents.index import Index
from imagestore.documents.select import (
    MAX_CONFIGS,
    MAX_ENTRIES,
    MAX_INDEXES,
    Selection,
    select,
    select_each,
    select_single,
)
from imagestore.errors import ContentNotFoundError, DocumentError, RegistryUnavailableError
from imagestore.platforms import Matcher, Platform, default_for, everything, only, parse

AMD64 = only(parse("linux/amd64"))


@dataclass
class Documents:
    """A source that remembers what was asked of it."""

    indexes: dict[Digest, Index] = field(default_factory=dict)
    configs: dict[Digest, Platform] = field(default_factory=dict)
    failing: dict[Digest, Exception] = field(default_factory=dict)
    opened: list[Digest] = field(default_factory=list)
    read: list[Digest] = field(default_factory=list)

    def index(self, descriptor: Descriptor) -> Index:
        self.opened.append(descriptor.digest)
        self._fail(descriptor)
        return self.indexes[descriptor.digest]

    def config_platform(self, descriptor: Descriptor) -> Platform | None:
        self.read.append(descriptor.digest)
        self._fail(descriptor)
        return self.configs.get(descriptor.digest)

    def _fail(self, descriptor: Descriptor) -> None:
        if descriptor.digest in self.failing:
            raise self.failing[descriptor.digest]

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

    def lost(self, entry: Descriptor, error: Exception | None = None) -> Descriptor:
        """The same entry, whose document can't be had."""
        gone = ContentNotFoundError(f"{entry.kind.value} {entry.digest}: needed, but not in the store")
        self.failing[entry.digest] = error or gone
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


def test_a_node_gets_a_fallback_where_there_is_nothing_better() -> None:
    node = default_for(parse("linux/arm64/v8"))
    found = _select(_entry("linux/amd64"), _entry("linux/arm/v5"), _entry("linux/arm/v7"), matcher=node)
    assert _chosen(found) == (2,)


def test_more_features_win_over_index_order() -> None:
    found = _select(_entry("linux/amd64"), _entry("linux(+a)/amd64"), matcher=only(parse("linux(+a+b)/amd64")))
    assert _chosen(found) == (1,)


def test_nothing_fits() -> None:
    found = _select(_entry("linux/arm64"), _attestation(), matcher=default_for(parse("linux/riscv64")))
    assert found.chosen is None
    assert found.runner_up is None
    assert found.ranked == ()
    assert found.offered == ("linux/arm64",)
    assert found.hint == ""


def test_empty_index_offers_nothing() -> None:
    found = _select()
    assert found == Selection("linux/amd64", (), None)
    assert found.hint == "the index lists no entries"


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


def test_what_is_beside_the_chosen_entry_of_a_nested_index_comes_next_then_what_is_outside() -> None:
    documents = Documents()
    found = _select(
        _entry("linux/386"),
        documents.nest("index", _entry("linux/386", name="inside"), _entry("linux/amd64"), platform="linux/amd64"),
        documents=documents,
    )
    assert [verdict.position for verdict in found.ranked] == [(1, 1), (1, 0), (0,)]


def test_a_fitting_manifest_leaves_every_index_closed() -> None:
    documents = Documents()
    broken = documents.lost(
        documents.nest("broken", platform="linux/386"), RegistryUnavailableError("connection refused")
    )
    deep = _entry("linux/amd64", name="deep")
    for level in range(6):
        deep = documents.nest(f"level {level}", deep, platform="linux/386" if level == 5 else "")
    found = _select(_entry("linux/amd64"), broken, deep, documents=documents)
    assert (_chosen(found), documents.opened) == ((0,), [])
    assert [(verdict.accepted, verdict.rank) for verdict in found.verdicts] == [(True, 0), (True, 1), (True, 2)]
    assert found.verdicts[1].reason.endswith("; the index was not opened, since another entry comes first")


def test_an_index_that_fails_is_an_error_when_its_turn_comes() -> None:
    documents = Documents()
    refused = RegistryUnavailableError("connection refused")
    best = documents.lost(documents.nest("best", platform="linux/amd64"), refused)
    with pytest.raises(RegistryUnavailableError):
        _select(best, _entry("linux/386"), documents=documents)
    silent = documents.lost(documents.silent("silent"), refused)
    with pytest.raises(RegistryUnavailableError):
        _select(silent, documents.silent("b", "linux/amd64"), documents=documents)


def test_where_the_best_index_holds_nothing_that_fits_the_next_entry_is_tried() -> None:
    documents = Documents()
    found = _select(
        _entry("linux/386"),
        documents.nest("best", _entry("linux/arm64"), platform="linux/amd64"),
        documents.nest("empty", platform="linux/amd64/v1"),
        documents=documents,
    )
    assert _chosen(found) == (0,)
    assert [(verdict.position, verdict.rule) for verdict in found.verdicts] == [
        ((0,), "match.fallback"),
        ((1, 0), "architecture"),
        ((2,), "empty-index"),
    ]
    assert found.offered == ("linux/386", "linux/arm64")


def test_one_index_listed_for_two_variants_is_opened_once() -> None:
    documents = Documents()
    inside = _entry("linux/arm/v7")
    seventh = documents.nest("arm", inside, platform="linux/arm/v7")
    sixth = replace(seventh, platform=parse("linux/arm/v6"))
    found = _select(sixth, seventh, matcher=default_for(parse("linux/arm/v7")), documents=documents)
    assert (_chosen(found), len(documents.opened)) == ((1, 0), 1)
    assert found.runner_up is found.verdicts[0]


def test_an_index_listed_twice_is_looked_into_once() -> None:
    documents = Documents()
    nested = documents.nest("index", _entry("linux/arm64"))
    found = _select(nested, nested, documents=documents)
    assert (found.chosen, len(documents.opened)) == (None, 1)
    assert _rules(found) == ["architecture", "listed-before"]
    assert found.verdicts[1].reason == "is the same index as entry 0, which was looked into already"


def test_platformless_entries_have_their_turn_in_the_order_of_the_index() -> None:
    documents = Documents()
    index = documents.nest("index", _entry("linux/amd64", name="inside"))
    for entries, chosen in (
        ((documents.silent("a", "linux/386"), index), (0,)),
        ((index, documents.silent("a", "linux/386")), (0, 0)),
        ((documents.silent("other", "linux/arm64"), index, documents.silent("a", "linux/amd64")), (1, 0)),
    ):
        assert _chosen(_select(*entries, documents=documents)) == chosen


def test_an_entry_whose_document_is_missing_is_ruled_out_and_the_next_one_tried() -> None:
    documents = Documents()
    silent, nested = documents.lost(documents.silent("silent")), documents.lost(documents.nest("nested"))
    best = documents.lost(documents.nest("best", platform="linux/amd64"))
    found = _select(silent, nested, documents.silent("here", "linux/amd64"), best, documents=documents)
    assert _chosen(found) == (2,)
    assert _rules(found) == ["document-missing", "document-missing", "match", "document-missing"]
    assert [verdict.accepted for verdict in found.verdicts] == [False, False, True, False]
    assert f"manifest {silent.digest}" in found.verdicts[0].reason
    assert f"index {nested.digest}" in found.verdicts[1].reason
    assert found.hint == ""


def test_where_nothing_else_fits_the_hint_names_the_missing_document() -> None:
    documents = Documents()
    silent, nested = documents.lost(documents.silent("silent")), documents.lost(documents.nest("nested"))
    found = _select(_entry("linux/arm64"), silent, nested, documents=documents)
    assert (found.chosen, found.offered) == (None, ("linux/arm64",))
    assert found.hint.startswith("entry 1 was not judged (and 1 more): has to be judged by a document that is missing")
    assert str(silent.digest) in found.hint


def test_several_matchers_share_the_work_and_get_what_each_would_get_alone() -> None:
    documents = Documents()
    entries = (
        _attestation("linux/amd64"),
        _entry("linux/amd64", name="first"),
        _entry("linux/amd64", name="second"),
        documents.nest("nested", _entry("linux/s390x"), documents.silent("silent", "linux/riscv64")),
    )
    wanted = {text: (only(parse(text)), text) for text in ("linux/amd64", "linux/s390x", "linux/riscv64", "wasi/wasm")}
    found = select_each(_index(*entries), wanted, documents)
    assert len(documents.opened) == 1
    for name, (matcher, text) in wanted.items():
        assert found[name] == select(_index(*entries), matcher, documents, wanted=text)
    assert [each.chosen and each.chosen.position for each in found.values()] == [(1,), (3, 0), (3, 1), None]


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


def test_index_that_lists_itself_ends() -> None:
    documents = Documents()
    nested = documents.nest("index")
    documents.indexes[nested.digest] = _index(nested)
    found = _select(nested, documents=documents)
    assert [(verdict.position, verdict.rule) for verdict in found.verdicts] == [((0, 0), "listed-before")]


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
    assert found.verdicts[0].place == "-"


def test_single_artifact_has_no_platform_to_judge() -> None:
    found = select_single(_entry(name="artifact"), None, AMD64, wanted="linux/amd64")
    assert (found.chosen, found.verdicts[0].rule, found.offered, found.hint) == (None, "no-image-config", (), "")


def test_the_chosen_verdict_is_the_one_in_the_list() -> None:
    found = _select(_entry("linux/386"), _entry("linux/amd64"))
    assert found.chosen is found.verdicts[1]
    assert found.verdicts is found.verdicts


def test_selections_are_equal_however_their_verdicts_came_about() -> None:
    made_when_read = _select(_entry("linux/386"), _entry("linux/amd64"))
    given = Selection("linux/amd64", made_when_read.verdicts, made_when_read.chosen)
    assert given == made_when_read
    assert hash(given) == hash(made_when_read)
    assert repr(given) == repr(made_when_read)
    assert given != replace(given, wanted="other")
    assert given != "linux/amd64"
