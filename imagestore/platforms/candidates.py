"""Many platforms, looked over once so that many matchers can choose among them.

An index lists up to thousands of entries and a node has dozens of runtime handlers. What a matcher asks first,
operating system, architecture and variant, is the same for most entries; what it asks next, Windows version and
features, is the same for whole families, since no rule looks at revisions. So platforms are put together by the first,
and on demand by the second, and matchers ask once for each of these. Revisions only order what fits.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from imagestore.platforms import windows
from imagestore.platforms.normalize import normalize_os

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.platforms.spec import Platform

#: Versions sort from the newest on, then what can't be read, then what has none.
NO_VERSION: Final[tuple[int, ...]] = (2,)
_UNREADABLE: Final[tuple[int, ...]] = (1,)
#: Sorts after every revision.
NO_REVISION: Final = 1


class Kin:
    """Platforms that fit all or not at all: their names, features and Windows builds are the same.

    Attributes:
        platform: the first of them.
        order: ``(0, -major, -minor, -build)``, or what stands for a version that can't be read or isn't there.
    """

    __slots__ = ("_members", "_revisions", "order", "platform")

    def __init__(self, platform: Platform, order: tuple[int, ...]) -> None:
        self.platform = platform
        self.order = order
        self._members: list[tuple[int, Platform]] = []
        self._revisions: list[tuple[int, int]] = []

    def add(self, number: int, platform: Platform) -> None:
        """Take one more."""
        self._members.append((number, platform))

    @property
    def first(self) -> int:
        """Number of the first of them."""
        return self._members[0][0]

    @property
    def by_revision(self) -> list[tuple[int, int]]:
        """Negative revision and number of each, the highest revision first; 1 where there is none, and so last."""
        if not self._revisions:
            self._revisions = sorted((_negative_revision(platform), number) for number, platform in self._members)
        return self._revisions


class Namesakes:
    """Platforms of one spelling of operating system, architecture and variant.

    Attributes:
        platform: the first of them.
        members: all of them with their numbers, in the order in which they came.
    """

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.members: list[tuple[int, Platform]] = []

    @cached_property
    def kin(self) -> list[Kin]:
        """All of them in families, newest version first."""
        found: dict[tuple[tuple[int, ...], tuple[str, ...]], Kin] = {}
        orders: dict[str, tuple[int, ...]] = {}
        # Other systems' versions are never looked at; an empty name may stand for Windows.
        is_versioned = not self.platform.os or normalize_os(self.platform.os) == "windows"
        for number, platform in self.members:
            order = NO_VERSION
            if is_versioned:
                build = _without_revision(platform.os_version)
                order = orders.get(build) or orders.setdefault(build, _order(build))
            key = (order, platform.os_features)
            kin = found.get(key)
            if kin is None:
                kin = found[key] = Kin(platform, order)
            kin.add(number, platform)
        return sorted(found.values(), key=lambda kin: kin.order)

    @cached_property
    def orders(self) -> list[tuple[int, ...]]:
        """The order of each family."""
        return [kin.order for kin in self.kin]


class Candidates:
    """Numbered platforms to choose from.

    >>> from imagestore.platforms import Platform, only
    >>> candidates = Candidates([(7, Platform("linux", "arm64")), (9, Platform("linux", "amd64"))])
    >>> only(Platform("linux", "amd64")).best(candidates)
    9
    """

    def __init__(self, platforms: Iterable[tuple[int, Platform]]) -> None:
        found: dict[tuple[str, str, str], Namesakes] = {}
        for number, platform in platforms:
            names = (platform.os, platform.architecture, platform.variant)
            namesakes = found.get(names)
            if namesakes is None:
                namesakes = found[names] = Namesakes(platform)
            namesakes.members.append((number, platform))
        self.namesakes = tuple(found.values())


def _without_revision(version: str) -> str:
    """What is compared: the first three parts."""
    return version.rpartition(".")[0] if version.count(".") == 3 else version


def _order(version: str) -> tuple[int, ...]:
    if not version:
        return NO_VERSION
    found = windows.parse_version(version)
    return _UNREADABLE if found is None else (0, -found.major, -found.minor, -found.build)


def _negative_revision(platform: Platform) -> int:
    revision = windows.revision_of(platform.os_version)
    return NO_REVISION if revision is None else -revision
