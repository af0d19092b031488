"""Choosing a manifest: every entry of an index gets a verdict, and at most one is chosen.

The rules, in containerd's order (core/images, reading an image with a matcher):

1. Entries that state a platform are judged by it. Attestations and entries of an unknown platform are never chosen.
2. What fits is sorted by the matcher; equals keep the order of the index.
3. Only when nothing fits are entries without platform looked into: first indexes inside the index, then the configs of
   manifests. containerd looks into one and gives up; here they are tried in index order, up to a bound.
4. An index inside the index is gone into with the same rules; its entries count at the place of the index.

A single manifest is judged by its config. Nothing here reads from disk or network: documents come from the caller.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import DocumentError
from imagestore.media_types import Kind
from imagestore.platforms import format_all
from imagestore.platforms.advice import advise

if TYPE_CHECKING:
    from imagestore.descriptor import Descriptor
    from imagestore.digest import Digest
    from imagestore.documents.index import Index
    from imagestore.platforms import Explanation, Matcher, Platform

#: Indexes inside indexes, the outermost included.
MAX_DEPTH: Final = 4
#: Entries of all indexes together.
MAX_ENTRIES: Final = 10_000
#: Entries without platform whose configs are read before giving up; each may cost two requests.
MAX_CONFIGS: Final = 16
#: Indexes inside the index that are opened before giving up; each may cost a request.
MAX_INDEXES: Final = 64

#: Verdicts of this module; the others are those of :class:`imagestore.platforms.Rule`.
RULE_ATTESTATION: Final = "attestation"
RULE_UNKNOWN_PLATFORM: Final = "unknown-platform"
RULE_MEDIA_TYPE: Final = "media-type"
RULE_NOT_NEEDED: Final = "not-needed"
RULE_TOO_MANY: Final = "too-many-configs"
RULE_NO_IMAGE_CONFIG: Final = "no-image-config"

_UNKNOWN: Final = "unknown"
_Position = tuple[int, ...]


class DocumentSource(Protocol):
    """Where selection gets the documents it must look into."""

    def index(self, descriptor: Descriptor) -> Index:
        """An index inside the index."""

    def config_platform(self, descriptor: Descriptor) -> Platform | None:
        """The platform in the config of a manifest; None when it has no image config."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one entry.

    Attributes:
        descriptor: the entry.
        platform: what it was judged by: its own platform, else its config's, else None.
        position: where it stands, one number for each level of indexes; empty for a single manifest.
        accepted: whether it fits, chosen or not.
        rule: stable identifier of the rule that decided.
        reason: one sentence.
        rank: 0 for the chosen entry, 1 for the one that would come next, and so on; None when it doesn't fit.
    """

    descriptor: Descriptor
    platform: Platform | None
    position: tuple[int, ...]
    accepted: bool
    rule: str
    reason: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice with its explanation.

    Attributes:
        wanted: text form of what was wanted.
        verdicts: one for each entry, in index order.
        chosen: the verdict of the chosen entry, or None when nothing fits.
        hint: when nothing fits and there is one, what to change; else empty.
    """

    wanted: str
    verdicts: tuple[Verdict, ...]
    chosen: Verdict | None
    hint: str = ""

    @property
    def runner_up(self) -> Verdict | None:
        """The entry that would come next."""
        return next((verdict for verdict in self.verdicts if verdict.rank == 1), None)

    @property
    def ranked(self) -> tuple[Verdict, ...]:
        """What fits, best first."""
        fitting = [verdict for verdict in self.verdicts if verdict.rank is not None]
        return tuple(sorted(fitting, key=lambda verdict: verdict.rank or 0))

    @property
    def offered(self) -> tuple[str, ...]:
        """Text forms of the platforms of the real images, each once, in index order."""
        texts = (
            format_all(verdict.platform)
            for verdict in self.verdicts
            if verdict.platform is not None and not _is_never_chosen(verdict)
        )
        return tuple(dict.fromkeys(texts))


def select(index: Index, matcher: Matcher, source: DocumentSource, *, wanted: str) -> Selection:
    """Choose a manifest from an index.

    Args:
        index: what the reference leads to.
        matcher: decides and orders.
        source: gives indexes inside the index, and platforms from configs.
        wanted: text form of the wanted platform, for people.

    Returns:
        The choice, with a verdict for every entry. Nothing chosen is no error here.

    Raises:
        DocumentError: indexes nest too deep, repeat, or list too many entries; or a document can't be read.
    """
    search = _Search(matcher, source)
    search.judge(index, ())
    order = search.ranked() or search.open_indexes() or search.read_configs()
    search.explain_the_rest()
    for rank, position in enumerate(order):
        search.verdicts[position] = dataclasses.replace(search.verdicts[position], rank=rank)
    verdicts = tuple(search.verdicts[position] for position in sorted(search.verdicts))
    chosen = search.verdicts[order[0]] if order else None
    return Selection(wanted, verdicts, chosen, "" if chosen else advise(_platforms(verdicts), matcher))


def select_single(descriptor: Descriptor, platform: Platform | None, matcher: Matcher, *, wanted: str) -> Selection:
    """Judge a manifest that no index lists, by its config.

    Args:
        descriptor: the manifest.
        platform: from its config; None when it has no image config.
        matcher: decides.
        wanted: text form of the wanted platform, for people.
    """
    verdict = _by_config(Verdict(descriptor, None, (), False, RULE_NO_IMAGE_CONFIG, ""), platform, matcher)
    if verdict.accepted:
        verdict = dataclasses.replace(verdict, rank=0)
        return Selection(wanted, (verdict,), verdict)
    return Selection(wanted, (verdict,), None, advise(_platforms((verdict,)), matcher))


class _Search:
    """The verdicts so far, and what has not been looked into."""

    def __init__(self, matcher: Matcher, source: DocumentSource) -> None:
        self.verdicts: dict[_Position, Verdict] = {}
        self._matcher = matcher
        self._source = source
        self._closed: dict[_Position, Descriptor] = {}
        self._silent: list[_Position] = []
        self._opened: set[Digest] = set()
        self._count = 0
        # Large indexes repeat their platforms and media types; each is judged once.
        self._known: dict[Platform, Explanation] = {}
        self._kinds: dict[str, Kind] = {}

    def judge(self, index: Index, above: _Position) -> None:
        """Judge the entries of an index, and of the indexes in it that state a fitting platform."""
        self._count += len(index.manifests)
        if self._count > MAX_ENTRIES:
            raise DocumentError("index", [f"lists more than {MAX_ENTRIES} entries, indexes inside it included"])
        for number, entry in enumerate(index.manifests):
            position = (*above, number)
            kind = self._kinds.get(entry.media_type)
            if kind is None:
                kind = self._kinds[entry.media_type] = entry.kind
            verdict = self._judge(entry, kind, position)
            if kind is Kind.INDEX and verdict.accepted:
                self._open(entry, position)
                continue
            self.verdicts[position] = verdict
            if verdict.rule == RULE_NOT_NEEDED:
                if kind is Kind.INDEX:
                    self._closed[position] = entry
                else:
                    self._silent.append(position)

    def ranked(self) -> list[_Position]:
        """Positions of what fits, best first; what the matcher holds equal keeps the order of the index."""
        keys = {
            position: self._matcher.sort_key(verdict.platform)
            for position, verdict in self.verdicts.items()
            if verdict.accepted and verdict.platform is not None
        }
        return sorted(sorted(keys), key=keys.__getitem__)

    def open_indexes(self) -> list[_Position]:
        """Look into the indexes without platform, level by level, until something fits."""
        while self._closed:
            closed, self._closed = self._closed, {}
            for position, entry in closed.items():
                del self.verdicts[position]
                self._open(entry, position)
            found = self.ranked()
            if found:
                return found
        return []

    def read_configs(self) -> list[_Position]:
        """Look into the configs of manifests without platform until one fits."""
        for tried, position in enumerate(sorted(self._silent)):
            verdict = self.verdicts[position]
            if tried >= MAX_CONFIGS:
                reason = f"states no platform, and the configs of {MAX_CONFIGS} entries before it do not fit"
                self.verdicts[position] = dataclasses.replace(verdict, rule=RULE_TOO_MANY, reason=reason)
                continue
            judged = _by_config(verdict, self._source.config_platform(verdict.descriptor), self._matcher)
            self.verdicts[position] = judged
            if judged.accepted:
                return [position]
        return []

    def explain_the_rest(self) -> None:
        """Give what was not looked into its reason."""
        for position, verdict in self.verdicts.items():
            if verdict.rule == RULE_NOT_NEEDED:
                what = "the index was not opened" if position in self._closed else "its config was not read"
                reason = f"states no platform; {what}, since another entry fits"
                self.verdicts[position] = dataclasses.replace(verdict, reason=reason)

    def _judge(self, entry: Descriptor, kind: Kind, position: _Position) -> Verdict:
        platform = entry.platform
        if entry.is_attestation:
            reason = "describes how another entry was built and never runs"
            return Verdict(entry, platform, position, False, RULE_ATTESTATION, reason)
        if kind is not Kind.MANIFEST and kind is not Kind.INDEX:
            reason = f"media type {entry.media_type[:100]!r} is neither an image manifest nor an index"
            return Verdict(entry, platform, position, False, RULE_MEDIA_TYPE, reason)
        if platform is None:
            return Verdict(entry, None, position, False, RULE_NOT_NEEDED, "")
        if _UNKNOWN in (platform.os.lower(), platform.architecture.lower()):
            reason = f"platform {format_all(platform)[:100]} is no platform that can run"
            return Verdict(entry, platform, position, False, RULE_UNKNOWN_PLATFORM, reason)
        found = self._known.get(platform)
        if found is None:
            found = self._known[platform] = self._matcher.explain(platform)
        return Verdict(entry, platform, position, found.matched, found.rule, found.reason)

    def _open(self, entry: Descriptor, position: _Position) -> None:
        path = "$" + "".join(f".manifests[{number}]" for number in position)
        if len(position) >= MAX_DEPTH:
            raise DocumentError("index", [f"{path}: indexes nest deeper than {MAX_DEPTH}"])
        if entry.digest in self._opened:
            raise DocumentError("index", [f"{path}: index {entry.digest} is listed twice"])
        if len(self._opened) >= MAX_INDEXES:
            raise DocumentError("index", [f"{path}: more than {MAX_INDEXES} indexes inside the index"])
        self._opened.add(entry.digest)
        self.judge(self._source.index(entry), position)


def _by_config(verdict: Verdict, platform: Platform | None, matcher: Matcher) -> Verdict:
    if platform is None:
        reason = "has no image config, so there is no platform to judge it by"
        return dataclasses.replace(verdict, rule=RULE_NO_IMAGE_CONFIG, reason=reason)
    found = matcher.explain(platform)
    return Verdict(
        verdict.descriptor, platform, verdict.position, found.matched, found.rule, f"by its config: {found.reason}"
    )


def _is_never_chosen(verdict: Verdict) -> bool:
    return verdict.rule in (RULE_ATTESTATION, RULE_UNKNOWN_PLATFORM, RULE_MEDIA_TYPE)


def _platforms(verdicts: tuple[Verdict, ...]) -> list[Platform]:
    return [each.platform for each in verdicts if each.platform is not None and not _is_never_chosen(each)]
