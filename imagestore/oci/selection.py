"""What a selection says: a verdict for every entry, the choice, and what comes next.

Verdicts carry the matcher's explanation, or one of the rules named here: those don't depend on any platform. Some
entries have their verdict before any matcher is asked: attestations, unknown platforms, media types that are no image,
and entries without a platform, whose turn comes last. The others are judged by the platform that they state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.oci.media_types import MANIFEST_ACCEPT, Kind
from imagestore.platforms import Explanation, Platform, format_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.index import Index

#: Verdicts of selection itself; the others are those of :class:`imagestore.platforms.Rule`.
RULE_ATTESTATION: Final = "attestation"
RULE_UNKNOWN_PLATFORM: Final = "unknown-platform"
RULE_MEDIA_TYPE: Final = "media-type"
RULE_NOT_NEEDED: Final = "not-needed"
RULE_TOO_MANY: Final = "too-many-configs"
RULE_NO_IMAGE_CONFIG: Final = "no-image-config"
#: An index inside the index that lists nothing.
RULE_EMPTY_INDEX: Final = "empty-index"
#: The same index stands at another place too, and was looked into there.
RULE_LISTED_BEFORE: Final = "listed-before"
#: A document that the entry has to be judged by isn't at hand (and no registry is asked).
RULE_DOCUMENT_MISSING: Final = "document-missing"

_UNKNOWN: Final = "unknown"
#: What says nothing about the platforms of real images.
_OFFERS_NOTHING: Final = frozenset(
    {
        *(RULE_ATTESTATION, RULE_UNKNOWN_PLATFORM, RULE_MEDIA_TYPE),
        *(RULE_EMPTY_INDEX, RULE_LISTED_BEFORE, RULE_DOCUMENT_MISSING),
    }
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one entry.

    Attributes:
        descriptor: the entry.
        platform: what it was judged by: its own platform, else its config's, else None.
        position: where it stands, one number for each level of indexes; empty for a single manifest.
        explanation: the answer with its reason.
        rank: 0 for the chosen entry, 1 for the one that would come next, and so on; None when it doesn't fit. An index
            that would come later has one rank for all that is in it, since it wasn't opened.
    """

    descriptor: Descriptor
    platform: Platform | None
    position: tuple[int, ...]
    explanation: Explanation
    rank: int | None = None

    @property
    def accepted(self) -> bool:
        """Whether it fits, chosen or not."""
        return self.explanation.matched

    @property
    def rule(self) -> str:
        """Stable identifier of the rule that decided."""
        return self.explanation.rule

    @property
    def reason(self) -> str:
        """One sentence."""
        return self.explanation.reason

    @property
    def place(self) -> str:
        """The position for people: ``1.0`` is the first entry of the index that is the second entry."""
        return place(self.position)


def place(position: tuple[int, ...]) -> str:
    """A position for people; ``-`` for a single manifest.

    >>> place((1, 0))
    '1.0'
    """
    return ".".join(str(number) for number in position) or "-"


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice with its explanation. Equal selections are equal, however their verdicts came about.

    Attributes:
        wanted: text form of what was wanted.
        judged: the verdicts, or what makes them (and keeps them): a choice has thousands, and few are read.
        chosen: the verdict of the chosen entry, or None when nothing fits.
    """

    wanted: str
    judged: tuple[Verdict, ...] | Callable[[], tuple[Verdict, ...]]
    chosen: Verdict | None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One for each entry, in index order; an index that was opened stands there with its entries."""
        return self.judged if isinstance(self.judged, tuple) else self.judged()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Selection):
            return NotImplemented
        return (self.wanted, self.verdicts, self.chosen) == (other.wanted, other.verdicts, other.chosen)

    def __hash__(self) -> int:
        return hash((self.wanted, self.chosen))

    def __reduce__(self) -> tuple[object, ...]:
        # What makes the verdicts stays in its process.
        return Selection, (self.wanted, self.verdicts, self.chosen)

    def __repr__(self) -> str:
        return f"Selection({self.wanted!r}, {self.verdicts!r}, {self.chosen!r})"

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
    def real(self) -> tuple[Verdict, ...]:
        """The verdicts on images of a known platform, chosen or not: what the publisher offers."""
        return tuple(each for each in self.verdicts if each.platform is not None and each.rule not in _OFFERS_NOTHING)

    @property
    def offered(self) -> tuple[str, ...]:
        """Text forms of the platforms of the real images, each once, in index order."""
        return tuple(dict.fromkeys(format_all(each.platform) for each in self.real if each.platform is not None))

    @property
    def hint(self) -> str:
        """When nothing is chosen, why no platform could have been; empty when that depends on the platform."""
        if self.chosen is not None:
            return ""
        if not self.verdicts:
            return "the index lists no entries"
        missing = [verdict for verdict in self.verdicts if verdict.rule == RULE_DOCUMENT_MISSING]
        if not missing:
            return ""
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        first = f"entry {missing[0].place} was not judged{more}: {missing[0].reason}"
        return f"{first}; ask the registry, or fetch it into the store first"


class Listing:
    """An index's entries, sorted out once, however many matchers ask.

    Attributes:
        entries: in the order of the index.
        settled: the verdicts on which no matcher has a say, by number of the entry.
        without_platform: numbers of the entries without platform.
        candidates: numbers and platforms of the others.
    """

    def __init__(self, index: Index) -> None:
        self.entries = index.manifests
        self.settled: dict[int, Explanation] = {}
        self.candidates = tuple(self._judged())
        self.without_platform = [number for number, found in self.settled.items() if found.rule == RULE_NOT_NEEDED]

    def leads_to_index(self, number: int) -> bool:
        """Whether an entry is an index inside the index."""
        return self.entries[number].kind is Kind.INDEX

    def _judged(self) -> Iterator[tuple[int, Platform]]:
        """The entries that their stated platforms decide on; the others are settled on the way."""
        for number, entry in enumerate(self.entries):
            settled = _settled(entry)
            if settled is not None:
                self.settled[number] = settled
            elif entry.platform is not None:
                yield number, entry.platform


def _settled(entry: Descriptor) -> Explanation | None:
    platform = entry.platform
    if entry.annotations and entry.is_attestation:
        return Explanation(False, RULE_ATTESTATION, "describes how another entry was built and never runs")
    if entry.media_type not in MANIFEST_ACCEPT and entry.kind not in (Kind.MANIFEST, Kind.INDEX):
        said = f"media type {entry.media_type[:100]!r} is neither an image manifest nor an index"
        return Explanation(False, RULE_MEDIA_TYPE, said)
    if platform is None:
        what = "the index was not opened" if entry.kind is Kind.INDEX else "its config was not read"
        return Explanation(False, RULE_NOT_NEEDED, f"states no platform; {what}, since another entry fits")
    if _UNKNOWN in (platform.os.lower(), platform.architecture.lower()):
        said = f"platform {format_all(platform)[:100]} is no platform that can run"
        return Explanation(False, RULE_UNKNOWN_PLATFORM, said)
    return None
