"""Laws of choosing: the chosen entry fits, and entries that don't matter don't."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import Descriptor, Digest
from imagestore.errors import ContentNotFoundError
from imagestore.oci import media_types
from imagestore.oci.index import Index
from imagestore.oci.select import Selection, select, select_each
from imagestore.platforms import Matcher, Platform, default_for, only

_PLATFORMS = st.builds(
    Platform,
    st.sampled_from(["linux", "linux", "windows", "windows", "darwin"]),
    st.sampled_from(["amd64", "amd64", "arm64", "arm", "386"]),
    st.sampled_from(["", "", "v6", "v7", "v8", "v2", "v3"]),
    st.builds("10.0.{}.{}".format, st.sampled_from([17763, 20348, 26100]), st.integers(1, 3000)),
    st.sampled_from([(), (), ("win32k",), ("a",)]),
)
_ENTRIES = st.lists(_PLATFORMS, max_size=8)
_MATCHERS = st.one_of(st.builds(default_for, _PLATFORMS), st.builds(only, _PLATFORMS))
#: Of an operating system that no matcher here wants.
_UNRELATED = Platform("plan9", "amd64")


class Nothing:
    """A source that is never asked."""

    def index(self, descriptor: Descriptor) -> Index:
        raise AssertionError(descriptor)

    def config_platform(self, descriptor: Descriptor) -> Platform | None:
        raise AssertionError(descriptor)


def _select(platforms: list[Platform], matcher: Matcher) -> Selection:
    entries = tuple(
        Descriptor(media_types.OCI_MANIFEST, Digest.of(str(number).encode()), 1, platform)
        for number, platform in enumerate(platforms)
    )
    return select(Index(b"", media_types.OCI_INDEX, entries), matcher, Nothing(), wanted="wanted")


def _platform(found: Selection) -> Platform | None:
    return None if found.chosen is None else found.chosen.platform


@given(_ENTRIES, _MATCHERS)
def test_chosen_entry_fits_and_none_is_preferred_to_it(entries: list[Platform], matcher: Matcher) -> None:
    chosen = _platform(_select(entries, matcher))
    fitting = [platform for platform in entries if matcher.match(platform)]
    assert (chosen is None) == (not fitting)
    if chosen is not None:
        assert matcher.match(chosen)
        assert not any(matcher.prefers(other, chosen) for other in fitting)


@given(_ENTRIES, _MATCHERS, st.integers(0, 8))
def test_unrelated_entry_never_changes_the_choice(entries: list[Platform], matcher: Matcher, place: int) -> None:
    with_unrelated = [*entries[:place], _UNRELATED, *entries[place:]]
    assert _platform(_select(with_unrelated, matcher)) == _platform(_select(entries, matcher))


@given(_ENTRIES, _MATCHERS)
def test_first_of_equally_good_entries_is_chosen(entries: list[Platform], matcher: Matcher) -> None:
    found = _select(entries, matcher)
    if found.chosen is not None and found.chosen.platform is not None:
        best = matcher.sort_key(found.chosen.platform)
        earlier = entries[: found.chosen.position[0]]
        assert not any(matcher.match(each) and matcher.sort_key(each) == best for each in earlier)


@given(_ENTRIES, _MATCHERS)
def test_ranks_follow_the_matchers_order(entries: list[Platform], matcher: Matcher) -> None:
    ranked = [verdict.platform for verdict in _select(entries, matcher).ranked if verdict.platform is not None]
    for worse, better in zip(ranked[1:], ranked, strict=False):
        assert not matcher.prefers(worse, better)


@pytest.mark.parametrize("size", [0, 1, 500])
def test_every_entry_has_one_verdict(size: int) -> None:
    found = _select([Platform("linux", "amd64")] * size, only(Platform("linux", "amd64")))
    assert len(found.verdicts) == size
    assert sorted(verdict.rank or 0 for verdict in found.verdicts) == list(range(size))


# Indexes inside indexes, entries without platform, doubles, and documents that can't be had.


@dataclass(frozen=True)
class Node:
    """An entry with what it leads to: an index's entries, or the platform in a manifest's config."""

    stated: Platform | None
    config: Platform | None = None
    inside: tuple[Node, ...] | None = None


@dataclass
class Tree:
    """Documents of a tree of entries, each with a digest of its own, and what was asked for."""

    missing: frozenset[int] = frozenset()
    asked: set[Digest] = field(default_factory=set)
    _indexes: dict[Digest, Index] = field(default_factory=dict)
    _configs: dict[Digest, Platform | None] = field(default_factory=dict)
    _lost: set[Digest] = field(default_factory=set)

    def build(self, nodes: list[Node]) -> Index:
        return Index(b"", media_types.OCI_INDEX, tuple(self._entry(node) for node in nodes))

    def _entry(self, node: Node) -> Descriptor:
        number = len(self._indexes) + len(self._configs)
        digest = Digest.of(str(number).encode())
        if number in self.missing:
            self._lost.add(digest)
        if node.inside is None:
            self._configs[digest] = node.config
            return Descriptor(media_types.OCI_MANIFEST, digest, 1, node.stated)
        self._indexes[digest] = Index(b"", media_types.OCI_INDEX, ())
        self._indexes[digest] = self.build(list(node.inside))
        return Descriptor(media_types.OCI_INDEX, digest, 1, node.stated)

    def index(self, descriptor: Descriptor) -> Index:
        self._ask(descriptor)
        return self._indexes[descriptor.digest]

    def config_platform(self, descriptor: Descriptor) -> Platform | None:
        self._ask(descriptor)
        return self._configs[descriptor.digest]

    def _ask(self, descriptor: Descriptor) -> None:
        self.asked.add(descriptor.digest)
        if descriptor.digest in self._lost:
            raise ContentNotFoundError(f"{descriptor.digest} is missing")


@dataclass
class Only:
    """A source that has nothing but what another one was asked for."""

    tree: Tree

    def index(self, descriptor: Descriptor) -> Index:
        assert descriptor.digest in self.tree.asked
        return self.tree.index(descriptor)

    def config_platform(self, descriptor: Descriptor) -> Platform | None:
        assert descriptor.digest in self.tree.asked
        return self.tree.config_platform(descriptor)


_SIMPLE = st.sampled_from([Platform("linux", "amd64"), Platform("linux", "386"), Platform("linux", "arm64")])
_STATED = st.one_of(st.none(), _SIMPLE)


def _nested(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(Node, _STATED, st.none(), st.lists(inner, max_size=3).map(tuple))


_LEAVES = st.one_of(st.builds(Node, _SIMPLE), st.builds(Node, st.none(), _STATED))
_NODES = st.one_of(_LEAVES, _LEAVES, _nested(_LEAVES), _nested(st.one_of(_LEAVES, _nested(_LEAVES))))
_TREES = st.lists(_NODES, max_size=5)
_WANTED = st.builds(only, _SIMPLE)


def _chosen(index: Index, matcher: Matcher, source: Tree | Only) -> Descriptor | None:
    found = select(index, matcher, source, wanted="wanted").chosen
    return None if found is None else found.descriptor


def _leads_to_something(node: Node, matcher: Matcher) -> bool:
    tree = Tree()
    return _chosen(tree.build([node]), matcher, tree) is not None


@given(_TREES, _WANTED)
def test_the_choice_is_the_first_that_leads_to_something_in_order_of_preference(
    nodes: list[Node], matcher: Matcher
) -> None:
    tree = Tree()
    index = tree.build(nodes)
    found = select(index, matcher, tree, wanted="wanted")
    stated = [number for number, node in enumerate(nodes) if node.stated is not None and matcher.match(node.stated)]
    stated.sort(key=lambda number: matcher.sort_key(nodes[number].stated or Platform("", "")))
    in_turn = stated + [number for number, node in enumerate(nodes) if node.stated is None]
    expected = next((number for number in in_turn if _leads_to_something(nodes[number], matcher)), None)
    assert (None if found.chosen is None else found.chosen.position[0]) == expected
    if found.chosen is not None and found.chosen.platform is not None:
        assert matcher.match(found.chosen.platform)


@given(_TREES, _WANTED)
def test_what_is_not_needed_is_never_asked_for(nodes: list[Node], matcher: Matcher) -> None:
    tree = Tree()
    index = tree.build(nodes)
    chosen = _chosen(index, matcher, tree)
    best = min(
        (node for node in nodes if node.stated is not None and matcher.match(node.stated)),
        key=lambda node: matcher.sort_key(node.stated or Platform("", "")),
        default=None,
    )
    assert _chosen(index, matcher, Only(tree)) == chosen
    if best is not None and best.inside is None:
        assert tree.asked == set()


@given(_TREES, _WANTED, st.data())
def test_listing_an_entry_again_never_changes_the_choice(
    nodes: list[Node], matcher: Matcher, data: st.DataObject
) -> None:
    tree = Tree()
    index = tree.build(nodes)
    doubled = list(index.manifests)
    if doubled:
        number = data.draw(st.integers(0, len(doubled) - 1))
        doubled.insert(data.draw(st.integers(number, len(doubled))), doubled[number])
    assert _chosen(Index(b"", index.media_type, tuple(doubled)), matcher, tree) == _chosen(index, matcher, tree)


@given(_TREES, _WANTED, st.frozensets(st.integers(0, 8), max_size=3))
def test_an_entry_whose_document_is_missing_counts_as_not_listed(
    nodes: list[Node], matcher: Matcher, missing: frozenset[int]
) -> None:
    tree = Tree(missing)
    index = tree.build(nodes)
    found = select(index, matcher, tree, wanted="wanted")
    lost = {verdict.position[0] for verdict in found.verdicts if verdict.rule == "document-missing"}
    flat = {verdict.position[0] for verdict in found.verdicts if len(verdict.position) == 1}
    without = [entry for number, entry in enumerate(index.manifests) if number not in lost & flat]
    again = _chosen(Index(b"", index.media_type, tuple(without)), matcher, tree)
    assert again == (None if found.chosen is None else found.chosen.descriptor)
    assert bool(found.hint) >= (found.chosen is None and bool(lost))


@given(_TREES, st.lists(_SIMPLE, max_size=3, unique=True))
def test_matchers_that_share_the_work_choose_as_each_alone(nodes: list[Node], wanted: list[Platform]) -> None:
    tree = Tree()
    index = tree.build(nodes)
    together = select_each(index, {str(each): (only(each), "wanted") for each in wanted}, tree)
    for each in wanted:
        assert together[str(each)] == select(index, only(each), tree, wanted="wanted")
