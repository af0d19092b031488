"""Laws of choosing: the chosen entry fits, and entries that don't matter don't."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import media_types
from imagestore.descriptor import Descriptor
from imagestore.digest import Digest
from imagestore.documents.index import Index
from imagestore.documents.select import Selection, select
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
