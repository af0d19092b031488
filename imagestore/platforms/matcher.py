"""Matchers: which platforms fit, which of two is better, and why.

Each answers as its namesake in containerd's platform library 1.0.0-rc.5 does:

============== =============== ==============================================================
here           there           accepts
============== =============== ==============================================================
exact          NewMatcher      the platform itself; no order
only           Only            the platform and what else its processor runs, best first
only_strict    OnlyStrict      the platform itself; more features first
only_os        OnlyOS          the operating system on any architecture, its own first
ordered        Ordered         any of the platforms, in their order
any_of         Any             any of the platforms, more features first
everything     All             everything, no order
default_for    Default         what a node of this platform takes
============== =============== ==============================================================

Among matching Windows images containerd prefers the greater os version as text. Here versions are compared as numbers:
the nearest build first, within it the wanted revision, then the highest below it, then the highest
(docs/matching.md).

``prefers(a, b)`` is containerd's ``Less``: a comes before b. It is a strict weak order, since it compares
:meth:`Matcher.sort_key`, which sorts a whole list at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import imagestore.platforms.windows as windows
from imagestore.platforms.explain import REFUSALS, Explanation, Rule
from imagestore.platforms.normalize import normalize
from imagestore.platforms.platform import Platform
from imagestore.platforms.requirement import exact_requirement, fallback_requirement, os_requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from imagestore.platforms.requirement import Requirement

#: Sorts after every place in a list of wanted platforms.
_LAST: Final = (2**64,)
#: How far a refused platform came, by the rule that refused it.
_STAGES: Final[Mapping[str, int]] = {rule: stage for stage, rule in enumerate(REFUSALS)}


class Matcher(Protocol):
    """Answers for candidate platforms; immutable, safe to share between threads."""

    @property
    def platforms(self) -> tuple[Platform, ...]:
        """The wanted platforms in normal form, best first; none for a matcher that takes everything."""

    def match(self, platform: Platform, /) -> bool:
        """Whether the platform fits."""

    def prefers(self, first: Platform, second: Platform, /) -> bool:
        """Whether the first is better than the second; neither is when they are equally good."""

    def sort_key(self, platform: Platform, /) -> tuple[int, ...]:
        """Smaller is better; equal where neither is preferred. Platforms that fit come before those that don't."""

    def explain(self, platform: Platform, /) -> Explanation:
        """The answer of :meth:`match` with its rule and a sentence.

        A refusal for operating system, architecture or variant holds for every platform that has the same three.
        """

    def best(self, candidates: Iterable[tuple[int, Platform]], /) -> int | None:
        """The number of the candidate that sorts first among those that fit; None when none fits.

        Args:
            candidates: numbers and platforms; of those that sort alike the lowest number wins.
        """


class _BaseMatcher:
    """Answers from the tests of the wanted platforms, without an order."""

    __slots__ = ("_requirements",)

    def __init__(self, requirements: tuple[Requirement, ...]) -> None:
        self._requirements = requirements

    @property
    def platforms(self) -> tuple[Platform, ...]:
        """The wanted platforms in normal form, best first."""
        return tuple(requirement.platform for requirement in self._requirements)

    def match(self, platform: Platform, /) -> bool:
        """Whether the platform fits one of the wanted ones."""
        # a loop, not any(): this runs for every entry of every index
        for requirement in self._requirements:  # noqa: SIM110
            if requirement.position(platform) is not None:
                return True
        return False

    def sort_key(self, _platform: Platform, /) -> tuple[int, ...]:
        """No order."""
        return ()

    def prefers(self, first: Platform, second: Platform, /) -> bool:
        """Whether the first sorts before the second."""
        return self.sort_key(first) < self.sort_key(second)

    def best(self, candidates: Iterable[tuple[int, Platform]], /) -> int | None:
        """See Matcher."""
        fitting = [(self.sort_key(platform), number) for number, platform in candidates if self.match(platform)]
        return min(fitting)[1] if fitting else None

    def explain(self, platform: Platform, /) -> Explanation:
        """The first wanted platform that fits, or else the one that comes closest."""
        if len(self._requirements) == 1:
            return self._requirements[0].explain(platform)
        closest: Explanation | None = None
        for requirement in self._requirements:
            found = requirement.explain(platform)
            if found.matched:
                return found
            if closest is None or _stage(found) > _stage(closest):
                closest = found
        return closest or Explanation(False, Rule.NOTHING_WANTED, "no platform is wanted at all")

    def _place(self, platform: Platform, *, without_features: bool = False) -> tuple[int, ...] | None:
        """Which wanted platform fits first, and which of its fallbacks."""
        for number, requirement in enumerate(self._requirements):
            position = requirement.position(platform, without_features=without_features)
            if position is not None:
                return number, position
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__.strip('_')} {', '.join(map(str, self.platforms))}>"


class _Exact(_BaseMatcher):
    __slots__ = ()


class _Ordered(_BaseMatcher):
    __slots__ = ()

    def sort_key(self, platform: Platform, /) -> tuple[int, ...]:
        """By place; at one place more features are better. What doesn't fit is placed as if it had no features."""
        place = self._place(platform)
        if place is not None:
            return (0, *place, -len(platform.os_features))
        if platform.os_features:
            place = self._place(platform, without_features=True)
        return (1, *(place or _LAST))


class _Any(_BaseMatcher):
    __slots__ = ()

    def sort_key(self, platform: Platform, /) -> tuple[int, ...]:
        """What fits, more features first; then what would fit without its features; then the rest."""
        if self.match(platform):
            return 0, -len(platform.os_features)
        stripped = platform.os_features and self._place(platform, without_features=True) is not None
        return (1,) if stripped else (2,)


class _OnlyOS(_BaseMatcher):
    __slots__ = ("_native",)

    def __init__(self, requirement: Requirement, native: Requirement) -> None:
        super().__init__((requirement,))
        self._native = native

    def sort_key(self, platform: Platform, /) -> tuple[int, ...]:
        """The wanted architecture first, more features first among those; what doesn't fit last."""
        if not self.match(platform):
            return (2,)
        if self._native.position(platform) is None:
            return (1,)
        return 0, -len(platform.os_features)


class _Everything(_BaseMatcher):
    __slots__ = ()

    def match(self, _platform: Platform, /) -> bool:
        """Always."""
        return True

    def explain(self, _platform: Platform, /) -> Explanation:
        """Always matched."""
        return Explanation(True, Rule.MATCH_ANYTHING, "every platform is wanted")


class _Windows(_BaseMatcher):
    """Takes the platform by the version rule and orders by version."""

    __slots__ = ("_revision",)

    def __init__(self, requirement: Requirement) -> None:
        super().__init__((requirement,))
        self._revision = None if requirement.version is None else requirement.version.revision

    def sort_key(self, platform: Platform, /) -> tuple[int, ...]:
        """Readable versions, best first; then unreadable ones; then entries without; then what doesn't fit."""
        if not self.match(platform):
            return (3,)
        if not platform.os_version:
            return (2,)
        version = windows.parse_version(platform.os_version)
        if version is None:
            return (1,)
        return (0, -version.major, -version.minor, -version.build, *self._revision_key(version.revision))

    def _revision_key(self, revision: int | None) -> tuple[int, ...]:
        if revision is None:
            return (3,)
        if self._revision is None or revision > self._revision:
            return 2, -revision
        return (0,) if revision == self._revision else (1, -revision)


def exact(platform: Platform, *, host: Platform | None = None) -> Matcher:
    """A matcher for one platform without any preference (containerd's NewMatcher).

    As there, the Windows rules apply only when ``platform.os`` is ``windows`` to the letter.

    Args:
        platform: what is wanted.
        host: whose operating system an empty one stands for, here and in candidates; this machine by default.
    """
    return _Exact((exact_requirement(platform, host=host),))


def only(platform: Platform, *, host: Platform | None = None) -> Matcher:
    """A matcher for one platform and its fallbacks (containerd's Only).

    >>> amd64 = only(Platform("linux", "amd64"))
    >>> amd64.match(Platform("linux", "386")), amd64.match(Platform("linux", "arm64"))
    (True, False)
    """
    return _Ordered((fallback_requirement(platform, host=host),))


def only_strict(platform: Platform, *, host: Platform | None = None) -> Matcher:
    """A matcher for one platform without fallbacks, in any spelling (containerd's OnlyStrict)."""
    requirement = exact_requirement(platform, host=host)
    return _Ordered((exact_requirement(requirement.platform, host=host),))


def only_os(platform: Platform, *, host: Platform | None = None) -> Matcher:
    """A matcher for one operating system on any architecture (containerd's OnlyOS)."""
    requirement = os_requirement(platform, host=host)
    return _OnlyOS(requirement, exact_requirement(requirement.platform, host=host))


def ordered(*platforms: Platform, host: Platform | None = None) -> Matcher:
    """A matcher for several platforms, the first one best, without fallbacks (containerd's Ordered)."""
    return _Ordered(tuple(exact_requirement(platform, host=host) for platform in platforms))


def any_of(*platforms: Platform, host: Platform | None = None) -> Matcher:
    """A matcher for several platforms, none better than another (containerd's Any)."""
    return _Any(tuple(exact_requirement(platform, host=host) for platform in platforms))


def everything() -> Matcher:
    """A matcher that takes everything, attestations too (containerd's All)."""
    return _Everything(())


def default_for(platform: Platform, *, host: Platform | None = None, guest: bool = False) -> Matcher:
    """The matcher that a node (or a guest) of this platform uses (containerd's Default).

    Windows nodes take their own build's images by the version rule, without 386 or arm; macOS and FreeBSD nodes take
    Linux images too; all others take their platform and what else its processor runs.

    Args:
        platform: the node's or the guest's platform, in any spelling. A Windows platform without os version stays open
            to every build. One that can't be read counts as absent, as in containerd, so configured ones go through
            :func:`imagestore.platforms.windows.check_version` first.
        host: whose operating system an empty one stands for; this machine by default.
        guest: the platform is that of a guest with a kernel of its own. The answers are the same; their reasons
            then don't speak of process isolation.

    >>> node = default_for(Platform("windows", "amd64", os_version="10.0.26100"))
    >>> entries = [Platform("windows", "amd64", os_version=v) for v in ("10.0.20348.2700", "10.0.26100.999")]
    >>> min(entries, key=node.sort_key).os_version
    '10.0.26100.999'
    """
    own = normalize(platform, host=host)
    if own.os == "windows":
        return _Windows(exact_requirement(own, host=host, is_guest=guest))
    if own.os == "darwin":
        return ordered(own, Platform("linux", own.architecture), host=host)
    if own.os == "freebsd":
        return ordered(own, Platform("linux", own.architecture, own.variant), host=host)
    return only(own, host=host)


def _stage(explanation: Explanation) -> int:
    return _STAGES[explanation.rule]
