"""One wanted platform, made ready for many tests, and the test itself with its explanation.

The test is containerd's (containerd/platforms 1.0.0-rc.5, ``NewMatcher``), in this order: operating system,
architecture and variant equal in normal form; on Windows the version rule; every feature of the candidate among the
wanted ones. On Windows one ``win32k`` of the candidate is overlooked, since hosts used not to list it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.platforms import windows
from imagestore.platforms.fallback import exactly, fallbacks, pair_name
from imagestore.platforms.normalize import normalize, normalize_architecture, normalize_os
from imagestore.platforms.rules import Explanation, Rule
from imagestore.platforms.specifier import format_all
from imagestore.platforms.windows_releases import name_of

if TYPE_CHECKING:
    from imagestore.platforms.fallback import Fallbacks
    from imagestore.platforms.spec import Platform
    from imagestore.platforms.windows import WindowsVersion

_WIN32K: Final = "win32k"
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one wanted platform asks of a candidate.

    Attributes:
        platform: the wanted platform in normal form.
        host: whose operating system a candidate without one counts for; None for this machine.
        accepted: architectures and variants; None for any.
        is_windows: whether the Windows version rule applies.
        version: what it compares with; None to accept every version.
        features: features that a candidate may ask for.
        overlooks_win32k: whether one ``win32k`` doesn't count.
    """

    platform: Platform
    host: Platform | None
    accepted: Fallbacks | None
    is_windows: bool
    version: WindowsVersion | None
    features: frozenset[str]
    overlooks_win32k: bool

    def position(self, candidate: Platform, *, without_features: bool = False) -> int | None:
        """Place of a candidate in the order of preference, 0 being best; None when it doesn't fit.

        Args:
            candidate: as it stands in a document.
            without_features: leave the features out of the test.
        """
        if candidate.os != self.platform.os and normalize_os(candidate.os, host=self.host) != self.platform.os:
            return None
        place = 0
        if self.accepted is not None:
            architecture, variant = normalize_architecture(candidate.architecture, candidate.variant)
            found = self.accepted.position(architecture, variant)
            if found is None:
                return None
            place = found
        if self.version is not None and candidate.os_version and not _version_fits(self.version, candidate.os_version):
            return None
        if candidate.os_features and not without_features and self._unmet(candidate):
            return None
        return place

    def explain(self, candidate: Platform) -> Explanation:
        """The same answer with its reason."""
        os_name = normalize_os(candidate.os, host=self.host)
        if os_name != self.platform.os:
            return _refused(Rule.OS, f"os {_cut(os_name)} ≠ {_cut(self.platform.os)}")
        place = 0
        if self.accepted is not None:
            pair = normalize_architecture(candidate.architecture, candidate.variant)
            found = self.accepted.position(*pair)
            if found is None:
                return self._wrong_architecture(self.accepted, *pair)
            place = found
        if self.version is not None and candidate.os_version:
            refusal = explain_version(self.version, candidate.os_version)
            if refusal is not None:
                return refusal
        unmet = self._unmet(candidate)
        if unmet:
            asked = ", ".join(_cut(each) or "(empty)" for each in unmet[:5])
            have = ", ".join(_cut(each) for each in sorted(self.features)[:5]) or "none"
            return _refused(Rule.FEATURES, f"os.features {asked} asked for, but the wanted platform has {have}")
        return self._taken(candidate, place)

    def _unmet(self, candidate: Platform) -> tuple[str, ...]:
        features = candidate.os_features
        if self.overlooks_win32k and _WIN32K in features:
            place = features.index(_WIN32K)
            features = features[:place] + features[place + 1 :]
        return tuple(feature for feature in features if feature not in self.features)

    def _wrong_architecture(self, accepted: Fallbacks, architecture: str, variant: str) -> Explanation:
        own = _cut(pair_name(accepted.own))
        if not accepted.positions:
            return _refused(
                Rule.VARIANT_UNKNOWN, f"variant {own} is no known arm64 variant, so nothing is known to run"
            )
        also = f" (accepted: {_cut(accepted.names())})" if len(accepted.positions) > 1 or accepted.top else ""
        if accepted.accepts_architecture(architecture):
            return _refused(Rule.VARIANT, f"variant {_cut(pair_name((architecture, variant)))} ≠ {own}{also}")
        return _refused(Rule.ARCHITECTURE, f"architecture {_cut(architecture)} ≠ {accepted.own[0]}{also}")

    def _taken(self, candidate: Platform, place: int) -> Explanation:
        what, wanted = _cut(format_all(candidate)), _cut(format_all(self.platform))
        if self.is_windows and self.version is None and candidate.os_version:
            if windows.parse_version(candidate.os_version) is None:
                return Explanation(
                    True,
                    Rule.MATCH_VERSION_UNREADABLE,
                    f"os.version {_cut(candidate.os_version)!r} can't be read; taken only because {wanted} names none",
                )
        elif self.is_windows and self.version is not None:
            if not candidate.os_version:
                return Explanation(
                    True, Rule.MATCH_VERSION_OPEN, f"{what} names no os.version, which fits every Windows build"
                )
            return Explanation(True, _place_rule(place), _version_taken(what, self.version, candidate.os_version))
        if place:
            return Explanation(True, Rule.MATCH_FALLBACK, f"{what} is fallback number {place} of {wanted}")
        return Explanation(True, Rule.MATCH, f"{what} fits {wanted}")


def exact_requirement(platform: Platform, *, host: Platform | None) -> Requirement:
    """Only this platform; the Windows rules apply when its os is spelt ``windows`` to the letter, as in containerd."""
    own = normalize(platform, host=host)
    is_windows = platform.os == "windows"
    return Requirement(
        platform=own,
        host=host,
        accepted=exactly(own.architecture, own.variant),
        is_windows=is_windows,
        version=_comparable(platform.os_version) if is_windows else None,
        features=frozenset(own.os_features),
        overlooks_win32k=is_windows,
    )


def fallback_requirement(platform: Platform, *, host: Platform | None) -> Requirement:
    """This platform and what else it runs."""
    own = normalize(platform, host=host)
    is_windows = own.os == "windows"
    return Requirement(
        platform=own,
        host=host,
        accepted=fallbacks(own.architecture, own.variant),
        is_windows=is_windows,
        version=_comparable(own.os_version) if is_windows else None,
        features=frozenset(own.os_features),
        overlooks_win32k=is_windows,
    )


def os_requirement(platform: Platform, *, host: Platform | None) -> Requirement:
    """This operating system on any architecture. Here containerd doesn't overlook ``win32k``."""
    own = normalize(platform, host=host)
    is_windows = own.os == "windows"
    return Requirement(
        platform=own,
        host=host,
        accepted=None,
        is_windows=is_windows,
        version=_comparable(own.os_version) if is_windows else None,
        features=frozenset(own.os_features),
        overlooks_win32k=False,
    )


def explain_version(host: WindowsVersion, text: str) -> Explanation | None:
    """Why a Windows host refuses an image's version under process isolation; None when it doesn't."""
    image = windows.parse_version(text)
    if image is None:
        return _refused(
            Rule.VERSION_UNREADABLE, f"os.version {_cut(text)!r} can't be read: expected major.minor.build[.revision]"
        )
    if (image.major, image.minor) != (host.major, host.minor):
        return _refused(Rule.VERSION_MAJOR_MINOR, f"os.version {image.major}.{image.minor} ≠ {host.major}.{host.minor}")
    if windows.process_compatible(host.build, image.build):
        return None
    names = _names(host.build, image.build)
    limit = windows.STABLE_INTERFACE
    if host.build < limit:
        rule, why = Rule.VERSION_BUILD_EXACT, f"≠ {host.build}: process isolation before {limit} needs the exact build"
    elif image.build > host.build:
        rule, why = Rule.VERSION_NEWER, f"> {host.build}: an image must not be newer than its host"
    else:
        floor = windows.stable_floor(host.build)
        rule, why = (
            Rule.VERSION_FLOOR,
            f"< {floor}: process isolation on {host.build} reaches back to build {floor}, not further",
        )
    return _refused(rule, f"os.version build {image.build} {why}{names}")


def _version_fits(host: WindowsVersion, text: str) -> bool:
    image = windows.parse_version(text)
    return (
        image is not None
        and (image.major, image.minor) == (host.major, host.minor)
        and windows.process_compatible(host.build, image.build)
    )


def _comparable(text: str) -> WindowsVersion | None:
    """The version to compare with; None when it is absent, unreadable or 0.0.0, which all accept everything."""
    version = windows.parse_version(text)
    return None if version is None or version.is_unset else version


def _version_taken(what: str, host: WindowsVersion, text: str) -> str:
    image = windows.parse_version(text)
    if image is None or image.build == host.build:
        return f"{what} has the wanted build {host.build}{_names(host.build, host.build)}"
    return (
        f"{what}: build {image.build} runs on {host.build}, "
        f"whose stable kernel interface reaches back to {windows.stable_floor(host.build)}"
        f"{_names(host.build, image.build)}"
    )


def _names(host_build: int, image_build: int) -> str:
    """The builds' names in brackets, where they are known."""
    host, image = name_of(host_build), name_of(image_build)
    if host_build == image_build:
        return f" ({host})" if host else ""
    parts = [f"image {image}" if image else "", f"wanted {host}" if host else ""]
    known = ", ".join(part for part in parts if part)
    return f" ({known})" if known else ""


def _place_rule(place: int) -> Rule:
    return Rule.MATCH_FALLBACK if place else Rule.MATCH


def _refused(rule: Rule, reason: str) -> Explanation:
    return Explanation(False, rule, reason)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
