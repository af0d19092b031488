"""Why a matcher takes or refuses a platform: stable identifiers for programs, one sentence for people."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class Rule(enum.StrEnum):
    """Which rule decided. The values are stable: they are printed, logged and compared by other programs."""

    #: Taken: the wanted platform itself.
    MATCH = "match"
    #: Taken: something else that the wanted platform can also run (an older variant, 386 on amd64, arm on arm64, ...).
    MATCH_FALLBACK = "match.fallback"
    #: Taken by a Windows platform without comparing versions, since the image or the wanted platform names none.
    MATCH_VERSION_OPEN = "match.os.version-open"
    #: Taken although the image's os version can't be read: the wanted Windows platform names none to compare with.
    MATCH_VERSION_UNREADABLE = "match.os.version-unreadable"
    #: Taken by a matcher that takes everything.
    MATCH_ANYTHING = "match.anything"

    OS = "os"
    ARCHITECTURE = "architecture"
    VARIANT = "variant"
    #: The wanted arm64 variant is none that exists, so nothing is known to run on it.
    VARIANT_UNKNOWN = "variant.unknown"
    #: major.minor differ.
    VERSION_MAJOR_MINOR = "os.version.major-minor"
    #: Below build 20348 only the same build runs.
    VERSION_BUILD_EXACT = "os.version.build-exact"
    #: The image is older than what the stable kernel interface reaches back to.
    VERSION_FLOOR = "os.version.stable-abi-floor"
    VERSION_NEWER = "os.version.newer-than-host"
    VERSION_UNREADABLE = "os.version.unreadable"
    FEATURES = "os.features"
    #: A matcher of no platforms at all.
    NOTHING_WANTED = "nothing-wanted"


#: Rules that refuse, from the first test to the last: a platform that failed later came closer.
REFUSALS: Final = (
    Rule.NOTHING_WANTED,
    Rule.OS,
    Rule.VARIANT_UNKNOWN,
    Rule.ARCHITECTURE,
    Rule.VARIANT,
    Rule.VERSION_UNREADABLE,
    Rule.VERSION_MAJOR_MINOR,
    Rule.VERSION_BUILD_EXACT,
    Rule.VERSION_FLOOR,
    Rule.VERSION_NEWER,
    Rule.FEATURES,
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A matcher's answer with its reason.

    Attributes:
        matched: the answer.
        rule: identifier of the rule that decided, one of :class:`Rule`.
        reason: one sentence naming both values.

    >>> Explanation(False, Rule.OS, "os linux ≠ windows").reason
    'os linux ≠ windows'
    """

    matched: bool
    rule: str
    reason: str
