"""Why a matcher takes or refuses a platform: stable identifiers for programs, one sentence for people."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import imagestore.platforms.windows as windows
from imagestore.platforms.fallback import pair_name
from imagestore.platforms.platform import format_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.platforms.fallback import Fallbacks, Pair
    from imagestore.platforms.platform import Platform
    from imagestore.platforms.windows import WindowsVersion


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
    """A matcher's answer with its reason. Two are equal when their sentences are.

    Attributes:
        matched: the answer.
        rule: identifier of the rule that decided, one of :class:`Rule`.
        said: the sentence, or a function that writes it: of hundreds of entries few reasons are read.

    >>> Explanation(False, Rule.OS, "os linux ≠ windows").reason
    'os linux ≠ windows'
    """

    matched: bool
    rule: str
    said: str | Callable[[], str]

    @property
    def reason(self) -> str:
        """One sentence naming both values."""
        return self.said if isinstance(self.said, str) else self.said()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Explanation):
            return NotImplemented
        return (self.matched, self.rule, self.reason) == (other.matched, other.rule, other.reason)

    def __hash__(self) -> int:
        return hash((self.matched, self.rule, self.reason))

    def __repr__(self) -> str:
        return f"Explanation({self.matched}, {str(self.rule)!r}, {self.reason!r})"


_SHOWN: Final = 80
_LISTED: Final = 5


def systems_differ(os_name: str, wanted: str) -> str:
    """Another operating system; both in normal form."""
    return f"os {_cut(os_name)} ≠ {_cut(wanted)}"


def architectures_differ(architecture: str, accepted: Fallbacks) -> str:
    """Another architecture, in normal form."""
    return f"architecture {_cut(architecture) or '(empty)'} ≠ {accepted.own[0]}{_also(accepted)}"


def variants_differ(pair: Pair, accepted: Fallbacks) -> str:
    """An accepted architecture in a variant that isn't."""
    return f"variant {_cut(pair_name(pair))} ≠ {_cut(pair_name(accepted.own))}{_also(accepted)}"


def variant_unknown(accepted: Fallbacks) -> str:
    """A wanted arm64 variant that nothing is known to run on."""
    return f"variant {_cut(pair_name(accepted.own))} is no known arm64 variant, so nothing is known to run"


def features_unmet(unmet: tuple[str, ...], have: frozenset[str]) -> str:
    """Features that the wanted platform doesn't list."""
    asked = ", ".join(_cut(each) or "(empty)" for each in unmet[:_LISTED])
    listed = ", ".join(_cut(each) for each in sorted(have)[:_LISTED]) or "none"
    return f"os.features {asked} asked for, but the wanted platform has {listed}"


def fits(candidate: Platform, wanted: Platform) -> str:
    """The wanted platform itself."""
    return f"{_shown(candidate)} fits {_shown(wanted)}"


def is_fallback(candidate: Platform, wanted: Platform, place: int) -> str:
    """Something else that the wanted platform runs."""
    return f"{_shown(candidate)} is fallback number {place} of {_shown(wanted)}"


def version_unreadable(text: str) -> str:
    """An image's version that can't be compared with the wanted one."""
    return f"os.version {_cut(text)!r} can't be read: expected major.minor.build[.revision], at most 255.255.65535"


def version_unreadable_but_open(text: str, wanted: Platform) -> str:
    """An image's version that can't be read, and needn't be."""
    return f"os.version {_cut(text)!r} can't be read; taken only because {_shown(wanted)} names none"


def version_open(candidate: Platform) -> str:
    """An image without a version."""
    return f"{_shown(candidate)} names no os.version, which fits every Windows build"


def version_not_compared(candidate: Platform, wanted: Platform) -> str:
    """A wanted Windows platform without a version to compare with."""
    version = windows.parse_version(wanted.os_version)
    if not wanted.os_version:
        why = "names no os.version"
    elif version is None or version.is_unset:
        why = "has an os.version that can't be read"
    else:
        why = "was not spelled 'windows', which leaves the version test out"
    return f"{_shown(candidate)}: versions were not compared, since the wanted {_shown(wanted)} {why}"


def lines_differ(host: WindowsVersion, image: WindowsVersion) -> str:
    """Windows versions that differ in major or minor."""
    return f"os.version {image.major}.{image.minor} ≠ {host.major}.{host.minor}"


def build_not_exact(host_build: int, image_build: int, *, is_guest: bool) -> str:
    """Before the stable kernel interface, another build."""
    limit = windows.STABLE_INTERFACE
    why = f"process isolation before {limit} needs the exact build"
    if is_guest:
        why = f"before build {limit} kernel and image need the exact same build"
    return f"os.version build {image_build} ≠ {host_build}: {why}{_names(host_build, image_build)}"


def build_newer(host_build: int, image_build: int, *, is_guest: bool) -> str:
    """A build newer than the kernel it would run on."""
    what = "the guest's kernel" if is_guest else "its host"
    names = _names(host_build, image_build)
    return f"os.version build {image_build} > {host_build}: an image must not be newer than {what}{names}"


def build_below_floor(host_build: int, image_build: int, *, is_guest: bool) -> str:
    """A build older than the stable kernel interface reaches back to."""
    floor = windows.stable_floor(host_build)
    what = f"a guest of build {host_build}" if is_guest else f"process isolation on {host_build}"
    names = _names(host_build, image_build)
    return f"os.version build {image_build} < {floor}: {what} reaches back to build {floor}, not further{names}"


def build_taken(candidate: Platform, host: WindowsVersion) -> str:
    """A build that runs on the wanted one."""
    what, image = _shown(candidate), windows.parse_version(candidate.os_version)
    if image is None or image.build == host.build:
        return f"{what} has the wanted build {host.build}{_names(host.build, host.build)}"
    return (
        f"{what}: build {image.build} runs on {host.build}, "
        f"whose stable kernel interface reaches back to {windows.stable_floor(host.build)}"
        f"{_names(host.build, image.build)}"
    )


def _also(accepted: Fallbacks) -> str:
    return f" (accepted: {_cut(accepted.names())})" if len(accepted.positions) > 1 or accepted.top else ""


def _names(host_build: int, image_build: int) -> str:
    """The builds' names in brackets, where they are known."""
    host, image = windows.name_of(host_build), windows.name_of(image_build)
    if host_build == image_build:
        return f" ({host})" if host else ""
    parts = [f"image {image}" if image else "", f"wanted {host}" if host else ""]
    known = ", ".join(part for part in parts if part)
    return f" ({known})" if known else ""


def _shown(platform: Platform) -> str:
    if platform.os:
        return _cut(format_all(platform))
    # The text form would be "unknown", whatever else is stated.
    named = pair_name((platform.architecture, platform.variant))
    return f"{_cut(named) or 'any architecture'} of the host's os"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
