"""One wanted platform, made ready for many tests, and the test itself with its explanation.

The test is containerd's (containerd/platforms 1.0.0-rc.5, ``NewMatcher``), in this order: operating system,
architecture and variant equal in normal form; on Windows the version rule; every feature of the candidate among the
wanted ones. On Windows one ``win32k`` of the candidate is overlooked, since hosts used not to list it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import imagestore.platforms.windows as windows
from imagestore.platforms.explain import Explanation, Rule
from imagestore.platforms.fallback import exactly, fallbacks, pair_name
from imagestore.platforms.normalize import normalize, normalize_architecture, normalize_os
from imagestore.platforms.platform import format_all

if TYPE_CHECKING:
    from imagestore.platforms.fallback import Fallbacks
    from imagestore.platforms.platform import Platform
    from imagestore.platforms.windows import WindowsVersion

_WIN32K: Final = "win32k"
_SHOWN: Final = 80
_LISTED: Final = 5


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one wanted platform asks of a candidate.

    Attributes:
        platform: the wanted platform in normal form.
        host: whose operating system a candidate without one counts for; None for this machine.
        accepted: architectures and variants; None for any.
        version: what the Windows version rule compares with; None to accept every version.
        features: features that a candidate may ask for.
        overlooks_win32k: whether one ``win32k`` doesn't count.
        is_guest: whether the platform brings its own kernel; only the wording depends on it.
    """

    platform: Platform
    host: Platform | None
    accepted: Fallbacks | None
    version: WindowsVersion | None
    features: frozenset[str]
    overlooks_win32k: bool
    is_guest: bool = False

    def position(self, candidate: Platform, *, without_features: bool = False) -> int | None:
        """Place of a candidate in the order of preference, 0 being best; None when it doesn't fit.

        Args:
            candidate: as it stands in a document.
            without_features: leave the features out of the test.
        """
        place = self.position_of_names(candidate)
        if place is None:
            return None
        if self.version is not None and candidate.os_version and not _version_fits(self.version, candidate.os_version):
            return None
        if candidate.os_features and not without_features and self.unmet(candidate):
            return None
        return place

    def position_of_names(self, candidate: Platform) -> int | None:
        """The same by operating system, architecture and variant alone: None for what no version could save."""
        if candidate.os != self.platform.os and normalize_os(candidate.os, host=self.host) != self.platform.os:
            return None
        if self.accepted is None:
            return 0
        return self.accepted.position(*normalize_architecture(candidate.architecture, candidate.variant))

    def explain(self, candidate: Platform) -> Explanation:
        """The same answer with its reason."""
        os_name = candidate.os
        if os_name != self.platform.os:
            os_name = normalize_os(os_name, host=self.host)
            if os_name != self.platform.os:
                return _refused(Rule.OS, f"os {_cut(os_name)} ≠ {_cut(self.platform.os)}")
        place = 0
        if self.accepted is not None:
            architecture, variant = normalize_architecture(candidate.architecture, candidate.variant)
            found = self.accepted.position(architecture, variant)
            if found is None:
                return _wrong_architecture(self.accepted, architecture, variant)
            place = found
        if self.version is not None and candidate.os_version:
            refusal = _explain_version(self.version, candidate.os_version, is_guest=self.is_guest)
            if refusal is not None:
                return refusal
        unmet = self.unmet(candidate) if candidate.os_features else ()
        if unmet:
            asked = ", ".join(_cut(each) or "(empty)" for each in unmet[:_LISTED])
            listed = ", ".join(_cut(each) for each in sorted(self.features)[:_LISTED]) or "none"
            return _refused(Rule.FEATURES, f"os.features {asked} asked for, but the wanted platform has {listed}")
        return self._taken(candidate, place)

    def unmet(self, candidate: Platform) -> tuple[str, ...]:
        """The candidate's features that the wanted platform doesn't have."""
        features = candidate.os_features
        if self.overlooks_win32k and _WIN32K in features:
            place = features.index(_WIN32K)
            features = features[:place] + features[place + 1 :]
        return tuple(feature for feature in features if feature not in self.features)

    def _taken(self, candidate: Platform, place: int) -> Explanation:
        rule = Rule.MATCH_FALLBACK if place else Rule.MATCH
        shown, wanted = _shown(candidate), _shown(self.platform)
        if self.platform.os != "windows":
            return Explanation(
                True, rule, f"{shown} is fallback number {place} of {wanted}" if place else f"{shown} fits {wanted}"
            )
        text = candidate.os_version
        image = windows.parse_version(text)
        if self.version is None:
            if text and image is None:
                reason = f"os.version {_cut(text)!r} can't be read; taken only because {wanted} names none"
                return Explanation(True, Rule.MATCH_VERSION_UNREADABLE, reason)
            reason = f"{shown}: versions were not compared, since the wanted {wanted} {self._why_open()}"
            return Explanation(True, Rule.MATCH_VERSION_OPEN, reason)
        if not text:
            reason = f"{shown} names no os.version, which fits every Windows build"
            return Explanation(True, Rule.MATCH_VERSION_OPEN, reason)
        build = self.version.build
        if image is None or image.build == build:
            return Explanation(True, rule, f"{shown} has the wanted build {build}{_names(build, build)}")
        reason = (
            f"{shown}: build {image.build} runs on {build}, whose stable kernel interface reaches back to"
            f" {windows.stable_floor(build)}{_names(build, image.build)}"
        )
        return Explanation(True, rule, reason)

    def _why_open(self) -> str:
        """Why a wanted Windows platform has no version to compare with."""
        if not self.platform.os_version:
            return "names no os.version"
        if _comparable(self.platform.os_version) is None:
            return "has an os.version that can't be read"
        return "was not spelled 'windows', which leaves the version test out"


def exact_requirement(platform: Platform, *, host: Platform | None, is_guest: bool = False) -> Requirement:
    """Only this platform; the Windows rules apply when its os is spelt ``windows`` to the letter, as in containerd."""
    own, is_windows = normalize(platform, host=host), platform.os == "windows"
    accepted = exactly(own.architecture, own.variant)
    return _requirement(own, host, accepted, is_windows=is_windows, overlooks_win32k=is_windows, is_guest=is_guest)


def fallback_requirement(platform: Platform, *, host: Platform | None) -> Requirement:
    """This platform and what else it runs."""
    own = normalize(platform, host=host)
    is_windows = own.os == "windows"
    accepted = fallbacks(own.architecture, own.variant)
    return _requirement(own, host, accepted, is_windows=is_windows, overlooks_win32k=is_windows)


def os_requirement(platform: Platform, *, host: Platform | None) -> Requirement:
    """This operating system on any architecture. Here containerd doesn't overlook ``win32k``."""
    own = normalize(platform, host=host)
    return _requirement(own, host, None, is_windows=own.os == "windows", overlooks_win32k=False)


def _requirement(
    own: Platform,
    host: Platform | None,
    accepted: Fallbacks | None,
    *,
    is_windows: bool,
    overlooks_win32k: bool,
    is_guest: bool = False,
) -> Requirement:
    version = _comparable(own.os_version) if is_windows else None
    return Requirement(own, host, accepted, version, frozenset(own.os_features), overlooks_win32k, is_guest)


def _explain_version(host: WindowsVersion, text: str, *, is_guest: bool) -> Explanation | None:
    """Why a Windows kernel of version ``host`` doesn't run an image of this version; None when it does."""
    image = windows.parse_version(text)
    if image is None:
        reason = (
            f"os.version {_cut(text)!r} can't be read: expected major.minor.build[.revision], at most 255.255.65535"
        )
        return _refused(Rule.VERSION_UNREADABLE, reason)
    if (image.major, image.minor) != (host.major, host.minor):
        reason = f"os.version {image.major}.{image.minor} ≠ {host.major}.{host.minor}"
        return _refused(Rule.VERSION_MAJOR_MINOR, reason)
    if windows.process_compatible(host.build, image.build):
        return None
    if host.build < windows.STABLE_INTERFACE:
        limit = windows.STABLE_INTERFACE
        why = f"process isolation before {limit} needs the exact build"
        if is_guest:
            why = f"before build {limit} kernel and image need the exact same build"
        rule, reason = Rule.VERSION_BUILD_EXACT, f"≠ {host.build}: {why}"
    elif image.build > host.build:
        what = "the guest's kernel" if is_guest else "its host"
        rule, reason = Rule.VERSION_NEWER, f"> {host.build}: an image must not be newer than {what}"
    else:
        floor = windows.stable_floor(host.build)
        what = f"a guest of build {host.build}" if is_guest else f"process isolation on {host.build}"
        rule, reason = Rule.VERSION_FLOOR, f"< {floor}: {what} reaches back to build {floor}, not further"
    return _refused(rule, f"os.version build {image.build} {reason}{_names(host.build, image.build)}")


def _wrong_architecture(accepted: Fallbacks, architecture: str, variant: str) -> Explanation:
    own = _cut(pair_name(accepted.own))
    if not accepted.positions:
        return _refused(Rule.VARIANT_UNKNOWN, f"variant {own} is no known arm64 variant, so nothing is known to run")
    also = f" (accepted: {_cut(accepted.names())})" if len(accepted.positions) > 1 or accepted.top else ""
    if accepted.accepts_architecture(architecture):
        return _refused(Rule.VARIANT, f"variant {_cut(pair_name((architecture, variant)))} ≠ {own}{also}")
    reason = f"architecture {_cut(architecture) or '(empty)'} ≠ {accepted.own[0]}{also}"
    return _refused(Rule.ARCHITECTURE, reason)


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


def _refused(rule: Rule, reason: str) -> Explanation:
    return Explanation(False, rule, reason)


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
