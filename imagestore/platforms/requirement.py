"""One wanted platform, made ready for many tests, and the test itself with its explanation.

The test is containerd's (containerd/platforms 1.0.0-rc.5, ``NewMatcher``), in this order: operating system,
architecture and variant equal in normal form; on Windows the version rule; every feature of the candidate among the
wanted ones. On Windows one ``win32k`` of the candidate is overlooked, since hosts used not to list it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import imagestore.platforms.explain as explain
import imagestore.platforms.windows as windows
from imagestore.platforms.explain import Explanation, Rule
from imagestore.platforms.fallback import exactly, fallbacks
from imagestore.platforms.normalize import normalize, normalize_architecture, normalize_os

if TYPE_CHECKING:
    from imagestore.platforms.fallback import Fallbacks
    from imagestore.platforms.platform import Platform
    from imagestore.platforms.windows import WindowsVersion

_WIN32K: Final = "win32k"


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
                return _refused(Rule.OS, partial(explain.systems_differ, os_name, self.platform.os))
        place = 0
        if self.accepted is not None:
            architecture, variant = normalize_architecture(candidate.architecture, candidate.variant)
            found = self.accepted.position(architecture, variant)
            if found is None:
                return _wrong_architecture(self.accepted, architecture, variant)
            place = found
        if self.version is not None and candidate.os_version:
            refusal = explain_version(self.version, candidate.os_version, is_guest=self.is_guest)
            if refusal is not None:
                return refusal
        unmet = self.unmet(candidate) if candidate.os_features else ()
        if unmet:
            return _refused(Rule.FEATURES, partial(explain.features_unmet, unmet, self.features))
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
        if self.platform.os != "windows":
            if place:
                return Explanation(True, rule, partial(explain.is_fallback, candidate, self.platform, place))
            return Explanation(True, rule, partial(explain.fits, candidate, self.platform))
        if self.version is not None:
            if not candidate.os_version:
                return Explanation(True, Rule.MATCH_VERSION_OPEN, partial(explain.version_open, candidate))
            return Explanation(True, rule, partial(explain.build_taken, candidate, self.version))
        if candidate.os_version and windows.parse_version(candidate.os_version) is None:
            said = partial(explain.version_unreadable_but_open, candidate.os_version, self.platform)
            return Explanation(True, Rule.MATCH_VERSION_UNREADABLE, said)
        said = partial(explain.version_not_compared, candidate, self.platform)
        return Explanation(True, Rule.MATCH_VERSION_OPEN, said)


def exact_requirement(platform: Platform, *, host: Platform | None, is_guest: bool = False) -> Requirement:
    """Only this platform; the Windows rules apply when its os is spelt ``windows`` to the letter, as in containerd."""
    own = normalize(platform, host=host)
    is_windows = platform.os == "windows"
    return Requirement(
        platform=own,
        host=host,
        accepted=exactly(own.architecture, own.variant),
        version=_comparable(platform.os_version) if is_windows else None,
        features=frozenset(own.os_features),
        overlooks_win32k=is_windows,
        is_guest=is_guest,
    )


def fallback_requirement(platform: Platform, *, host: Platform | None) -> Requirement:
    """This platform and what else it runs."""
    own = normalize(platform, host=host)
    is_windows = own.os == "windows"
    return Requirement(
        platform=own,
        host=host,
        accepted=fallbacks(own.architecture, own.variant),
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
        version=_comparable(own.os_version) if is_windows else None,
        features=frozenset(own.os_features),
        overlooks_win32k=False,
    )


def explain_version(host: WindowsVersion, text: str, *, is_guest: bool) -> Explanation | None:
    """Why a Windows kernel of version ``host`` doesn't run an image of this version; None when it does."""
    image = windows.parse_version(text)
    if image is None:
        return _refused(Rule.VERSION_UNREADABLE, partial(explain.version_unreadable, text))
    if (image.major, image.minor) != (host.major, host.minor):
        return _refused(Rule.VERSION_MAJOR_MINOR, partial(explain.lines_differ, host, image))
    if windows.process_compatible(host.build, image.build):
        return None
    if host.build < windows.STABLE_INTERFACE:
        rule, sentence = Rule.VERSION_BUILD_EXACT, explain.build_not_exact
    elif image.build > host.build:
        rule, sentence = Rule.VERSION_NEWER, explain.build_newer
    else:
        rule, sentence = Rule.VERSION_FLOOR, explain.build_below_floor
    return _refused(rule, partial(sentence, host.build, image.build, is_guest=is_guest))


def _wrong_architecture(accepted: Fallbacks, architecture: str, variant: str) -> Explanation:
    if not accepted.positions:
        return _refused(Rule.VARIANT_UNKNOWN, partial(explain.variant_unknown, accepted))
    if accepted.accepts_architecture(architecture):
        return _refused(Rule.VARIANT, partial(explain.variants_differ, (architecture, variant), accepted))
    return _refused(Rule.ARCHITECTURE, partial(explain.architectures_differ, architecture, accepted))


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


def _refused(rule: Rule, said: partial[str]) -> Explanation:
    return Explanation(False, rule, said)
