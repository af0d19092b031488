"""The entries of an index as every matcher finds them: looked over once, however many handlers ask.

Some entries have their verdict before any matcher is asked: attestations, unknown platforms, media types that are no
image, and entries without a platform, whose turn comes last. The others are judged by the platform that they state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.oci.media_types import MANIFEST_ACCEPT, Kind
from imagestore.oci.selection import RULE_ATTESTATION, RULE_MEDIA_TYPE, RULE_NOT_NEEDED, RULE_UNKNOWN_PLATFORM
from imagestore.platforms import Explanation, format_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.index import Index
    from imagestore.platforms import Platform

_UNKNOWN: Final = "unknown"


class Listing:
    """An index's entries, sorted out.

    Attributes:
        entries: in the order of the index.
        settled: the verdicts on which no matcher has a say, by number of the entry.
        silent: numbers of the entries without platform.
        candidates: numbers and platforms of the others.
    """

    def __init__(self, index: Index) -> None:
        self.entries = index.manifests
        self.settled: dict[int, Explanation] = {}
        self.candidates = tuple(self._judged())
        self.silent = [number for number, found in self.settled.items() if found.rule == RULE_NOT_NEEDED]

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
