"""Choosing a manifest: every entry of an index gets a verdict, and at most one is chosen.

The rules, in containerd's order (core/images, reading an image with a matcher):

1. Entries that state a platform are judged by it. Attestations and entries of an unknown platform are never chosen.
2. What fits is sorted by the matcher; equals keep the order of the index. The best comes first.
3. When none of that leads to a manifest, entries without platform have their turn, in the order of the index.
4. A manifest without platform is judged by its config; where the caller asks for it, so is a Windows entry that fits
   only because it states no version, when its turn comes. An index inside the index is opened when its turn comes, and
   gone into with the same rules.

Where containerd looks at one entry and gives up, the next one is tried here, up to a bound
(docs/matching.md). What isn't needed isn't opened, and so can't fail. A document that isn't at
hand rules its entry out; any other failure ends the search, since what it hides is what would be chosen.

A single manifest is judged by its config. Nothing here reads from disk or network: documents come from the caller.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import ContentNotFoundError, DocumentError
from imagestore.oci.selection import (
    RULE_DOCUMENT_MISSING,
    RULE_EMPTY_INDEX,
    RULE_LISTED_BEFORE,
    RULE_NO_IMAGE_CONFIG,
    RULE_TOO_MANY,
    Listing,
    place,
)
from imagestore.oci.selection import Selection as Selection
from imagestore.oci.selection import Verdict as Verdict
from imagestore.platforms import Explanation, Matcher, Platform, Rule
from imagestore.platforms.normalize import normalize_features

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.index import Index

#: Indexes inside indexes, the outermost included.
MAX_DEPTH: Final = 4
#: Entries of all opened indexes together.
MAX_ENTRIES: Final = 10_000
#: Entries without platform whose configs are read before giving up; each may cost two requests.
MAX_CONFIGS: Final = 16
#: Indexes inside the index that are opened before giving up; each may cost a request.
MAX_INDEXES: Final = 64

_Position = tuple[int, ...]
_Key = tuple["Digest", str]


class DocumentSource(Protocol):
    """Where selection gets the documents it must look into; each method may raise ContentNotFoundError."""

    def index(self, descriptor: Descriptor) -> Index:
        """An index inside the index."""

    def config_platform(self, descriptor: Descriptor) -> Platform | None:
        """The platform in the config of a manifest; None when it has no image config."""


def select(
    index: Index, matcher: Matcher, source: DocumentSource, *, wanted: str, judges_versions: bool = False
) -> Selection:
    """Choose a manifest from an index.

    Nothing chosen is no error here; every entry has a verdict.

    Args:
        index: what the reference leads to.
        matcher: decides and orders.
        source: gives indexes inside the index, and platforms from configs.
        wanted: text form of the wanted platform, for people.
        judges_versions: whether the config decides where a Windows entry states no version.

    Raises:
        DocumentError: what has to be opened nests too deep or lists too many entries, or can't be read.
    """
    return _selected(matcher, wanted, Listing(index), _Shared(source), judges_versions)


def select_each(
    index: Index,
    wanted: Mapping[str, tuple[Matcher, str]],
    source: DocumentSource,
    *,
    judging_versions: Collection[str] = (),
) -> dict[str, Selection]:
    """The same for several matchers, with the work that they share done once.

    ``wanted`` has a matcher and the text form of what is wanted by name, ``judging_versions`` the names for which
    ``judges_versions`` is true.

    Raises:
        DocumentError: as :func:`select`.
    """
    listing, shared = Listing(index), _Shared(source)
    return {
        name: _selected(matcher, text, listing, shared, name in judging_versions)
        for name, (matcher, text) in wanted.items()
    }


def select_single(descriptor: Descriptor, platform: Platform | None, matcher: Matcher, *, wanted: str) -> Selection:
    """Judge a manifest that no index lists by the platform of its config; None when it has no image config."""
    found = _by_config(platform, matcher)
    verdict = Verdict(descriptor, platform, (), found, 0 if found.matched else None)
    return Selection(wanted, (verdict,), verdict if found.matched else None)


class _Shared:
    """Documents, looked over once however many matchers ask."""

    def __init__(self, source: DocumentSource) -> None:
        self.source = source
        self._listings: dict[_Key, Listing] = {}

    def listing(self, entry: Descriptor) -> Listing:
        """The entries of an index inside the index."""
        key = (entry.digest, entry.media_type)
        found = self._listings.get(key)
        if found is None:
            found = self._listings[key] = Listing(self.source.index(entry))
        return found


def _selected(matcher: Matcher, wanted: str, listing: Listing, shared: _Shared, judges_versions: bool) -> Selection:
    """The choice, by the short way where no document has to be opened: verdicts are then made when they are read."""
    best = matcher.best(listing.candidates)
    opens = bool(listing.without_platform) if best is None else listing.leads_to_index(best)
    if best is not None and judges_versions:
        opens = opens or _is_open(matcher, listing.entries[best])
    if opens or len(listing.entries) > MAX_ENTRIES:
        verdicts = _Search(matcher, shared, judges_versions).verdicts(listing)
        return Selection(wanted, verdicts, next((each for each in verdicts if each.rank == 0), None))
    chosen = None
    if best is not None:
        entry = listing.entries[best]
        assert entry.platform is not None
        chosen = Verdict(entry, entry.platform, (best,), matcher.explain(entry.platform), 0)
    return Selection(wanted, cache(partial(_verdicts, matcher, listing, chosen)), chosen)


def _verdicts(matcher: Matcher, listing: Listing, chosen: Verdict | None) -> tuple[Verdict, ...]:
    """The verdicts on an index whose best entry is a manifest, or in which nothing fits."""
    verdicts, fitting = _judge(matcher, listing, ())
    for rank, number in enumerate(fitting):
        verdict = verdicts[number]
        if rank and listing.leads_to_index(number):
            verdict = _unopened(verdict)
        verdicts[number] = replace(verdict, rank=rank) if rank or chosen is None else chosen
    return tuple(verdicts)


def _judge(matcher: Matcher, listing: Listing, above: _Position) -> tuple[list[Verdict], list[int]]:
    """The verdict of its stated platform on every entry; numbers of those that fit, best first."""
    explanations = dict(listing.settled)
    fitting: list[tuple[tuple[int, ...], int]] = []
    for number, platform in listing.candidates:
        explanations[number] = matcher.explain(platform)
        if explanations[number].matched:
            fitting.append((matcher.sort_key(platform), number))
    verdicts = [
        Verdict(entry, entry.platform, (*above, number), explanations[number])
        for number, entry in enumerate(listing.entries)
    ]
    return verdicts, [number for _, number in sorted(fitting)]


class _Search:
    """One matcher's way through an index.

    An order is a list of positions: what is chosen, then what would come next; empty when nothing fits.
    """

    def __init__(self, matcher: Matcher, shared: _Shared, judges_versions: bool) -> None:
        self._matcher = matcher
        self._shared = shared
        self._judges_versions = judges_versions
        self._verdicts: dict[_Position, Verdict] = {}
        self._opened: dict[_Key, _Position] = {}
        self._configs: dict[_Key, tuple[Platform | None, Explanation]] = {}
        self._unread: list[_Position] = []
        self._count = 0

    def verdicts(self, listing: Listing) -> tuple[Verdict, ...]:
        """The verdicts on the outermost index, ranked."""
        order = self._choose(listing, ())
        for rank, position in enumerate(order[:1] + self._unread + order[1:]):
            self._verdicts[position] = replace(self._verdicts[position], rank=rank)
        return tuple(self._verdicts[position] for position in sorted(self._verdicts))

    def _choose(self, listing: Listing, above: _Position) -> list[_Position]:
        """Judge an index's entries and try what may be chosen, best first."""
        self._count += len(listing.entries)
        if self._count > MAX_ENTRIES:
            raise DocumentError("index", [f"lists more than {MAX_ENTRIES} entries, indexes inside it included"])
        verdicts, fitting = _judge(self._matcher, listing, above)
        self._verdicts.update({verdict.position: verdict for verdict in verdicts})
        for done, number in enumerate(fitting, start=1):
            order = self._try(listing, number, above)
            if order:
                later = fitting[done:]
                for each in later:
                    if listing.leads_to_index(each):
                        self._verdicts[(*above, each)] = _unopened(self._verdicts[(*above, each)])
                return order + [(*above, each) for each in later]
        for number in listing.without_platform:
            order = self._try(listing, number, above)
            if order:
                return order
        return []

    def _try(self, listing: Listing, number: int, above: _Position) -> list[_Position]:
        entry, position = listing.entries[number], (*above, number)
        if listing.leads_to_index(number):
            return self._open(entry, position)
        if number in listing.settled:
            return self._read_config(entry, position)
        if self._judges_versions and _is_open(self._matcher, entry):
            return self._read_version(entry, position)
        return [position]

    def _open(self, entry: Descriptor, position: _Position) -> list[_Position]:
        """Go into an index inside the index."""
        path = "$" + "".join(f".manifests[{number}]" for number in position)
        key = (entry.digest, entry.media_type)
        before = self._opened.get(key)
        if before is not None:
            said = f"is the same index as entry {place(before)}, which was looked into already"
            return self._refuse(entry, position, Explanation(False, RULE_LISTED_BEFORE, said))
        if len(position) >= MAX_DEPTH:
            raise DocumentError("index", [f"{path}: indexes nest deeper than {MAX_DEPTH}"])
        if len(self._opened) >= MAX_INDEXES:
            raise DocumentError("index", [f"{path}: more than {MAX_INDEXES} indexes inside the index"])
        self._opened[key] = position
        try:
            listing = self._shared.listing(entry)
        except ContentNotFoundError as error:
            return self._refuse(entry, position, _missing(error))
        if not listing.entries:
            return self._refuse(entry, position, Explanation(False, RULE_EMPTY_INDEX, "the index lists no entries"))
        del self._verdicts[position]
        return self._choose(listing, position)

    def _read_config(self, entry: Descriptor, position: _Position) -> list[_Position]:
        """Judge a manifest without platform by its config."""
        platform, found = self._config_of(entry, "platform")
        self._verdicts[position] = Verdict(entry, platform, position, found)
        return [position] if found.matched else []

    def _read_version(self, entry: Descriptor, position: _Position) -> list[_Position]:
        """Judge a manifest without version by that of its config, where there is one.

        What isn't at hand is chosen last: an archive, or a store, has what was chosen when all could be read.
        """
        platform, found = self._config_of(entry, "version")
        if found.rule == RULE_DOCUMENT_MISSING:
            self._unread.append(position)
            return []
        if found.rule != RULE_TOO_MANY and (platform is None or not platform.os_version):
            return [position]
        self._verdicts[position] = Verdict(entry, platform or entry.platform, position, found)
        return [position] if found.matched else []

    def _config_of(self, entry: Descriptor, lacking: str) -> tuple[Platform | None, Explanation]:
        key = (entry.digest, entry.media_type)
        if key not in self._configs:
            if len(self._configs) >= MAX_CONFIGS:
                said = f"states no {lacking}, and the configs of {MAX_CONFIGS} entries before it do not fit"
                return None, Explanation(False, RULE_TOO_MANY, said)
            self._configs[key] = self._judged_config(entry)
        return self._configs[key]

    def _judged_config(self, entry: Descriptor) -> tuple[Platform | None, Explanation]:
        try:
            platform = self._shared.source.config_platform(entry)
        except ContentNotFoundError as error:
            return None, _missing(error)
        return platform, _by_config(platform, self._matcher)

    def _refuse(self, entry: Descriptor, position: _Position, why: Explanation) -> list[_Position]:
        self._verdicts[position] = Verdict(entry, entry.platform, position, why)
        return []


def _is_open(matcher: Matcher, entry: Descriptor) -> bool:
    """Whether an entry fits only because it states no version."""
    if entry.platform is None or entry.platform.os_version:
        return False
    return matcher.explain(entry.platform).rule == Rule.MATCH_VERSION_OPEN


def _by_config(platform: Platform | None, matcher: Matcher) -> Explanation:
    if platform is None:
        said = "has no image config, so there is no platform to judge it by"
        return Explanation(False, RULE_NO_IMAGE_CONFIG, said)
    # In normal form, as containerd has it: a feature that the config states twice counts once.
    found = matcher.explain(replace(platform, os_features=normalize_features(platform.os_features)))
    return Explanation(found.matched, found.rule, f"by its config: {found.reason}")


def _missing(error: ContentNotFoundError) -> Explanation:
    return Explanation(False, RULE_DOCUMENT_MISSING, f"has to be judged by a document that is missing: {error}")


def _unopened(verdict: Verdict) -> Verdict:
    reason = f"{verdict.reason}; the index was not opened, since another entry comes first"
    return replace(verdict, explanation=Explanation(True, verdict.rule, reason))
