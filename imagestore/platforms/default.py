"""What a node of some platform uses when nothing else is said.

Windows nodes take their own build's images by the version rule, without 386 or arm; macOS and FreeBSD nodes take
Linux images too; all others take their platform and what else its processor runs. So does containerd
(containerd/platforms 1.0.0-rc.5, ``Default``).

Among matching Windows images containerd prefers the greater os version as text. Here versions are compared as
numbers: the nearest build first, within it the wanted revision, then the highest below it, then the highest. See
:mod:`imagestore.platforms.differences`.
"""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING

from imagestore.platforms import windows
from imagestore.platforms.candidates import NO_REVISION, NO_VERSION
from imagestore.platforms.match import BaseMatcher, only, ordered
from imagestore.platforms.normalize import normalize
from imagestore.platforms.requirement import exact_requirement
from imagestore.platforms.spec import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.platforms.candidates import Candidates, Kin, Namesakes
    from imagestore.platforms.match import Matcher
    from imagestore.platforms.requirement import Requirement


class _Windows(BaseMatcher):
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

    def best(self, candidates: Candidates, /) -> int | None:
        """As said there; builds and revisions are found by bisection, since an index may list hundreds."""
        found = [
            (kin.order, *self._best_member(kin))
            for namesakes in candidates.namesakes
            if self._takes_names(namesakes.platform)
            for kin in self._newest(namesakes)
        ]
        return min(found)[-1] if found else None

    def _newest(self, namesakes: Namesakes) -> Iterator[Kin]:
        """The families of the newest build that fits; they differ in features."""
        requirement, version = self._requirements[0], self._requirements[0].version
        orders = namesakes.orders
        places = [range(len(orders))]
        if version is not None:
            line, oldest = (0, -version.major, -version.minor), windows.oldest_process_compatible(version.build)
            newest = bisect.bisect_left(orders, (*line, -version.build))
            places = [range(newest, bisect.bisect_right(orders, (*line, -oldest)))]
            places += [range(bisect.bisect_left(orders, NO_VERSION), len(orders))]
        order = None
        for place in itertools.chain(*places):
            kin = namesakes.kin[place]
            if order not in (None, kin.order):
                return
            if not requirement.unmet(kin.platform):
                order = kin.order
                yield kin

    def _best_member(self, kin: Kin) -> tuple[tuple[int, ...], int]:
        """Key and number of the revision that comes first."""
        if kin.order[0]:
            return (), kin.first
        revisions = kin.by_revision
        place = 0 if self._revision is None else bisect.bisect_left(revisions, (-self._revision,))
        if place == len(revisions) or revisions[place][0] == NO_REVISION:
            place = 0
        negative, number = revisions[place]
        return self._revision_key(None if negative == NO_REVISION else -negative), number

    def _revision_key(self, revision: int | None) -> tuple[int, ...]:
        if revision is None:
            return (3,)
        if self._revision is None or revision > self._revision:
            return 2, -revision
        return (0,) if revision == self._revision else (1, -revision)


def default_for(platform: Platform, *, host: Platform | None = None, is_guest: bool = False) -> Matcher:
    """The matcher that a node (or a guest) of this platform uses.

    Args:
        platform: the node's or the guest's platform, in any spelling. A Windows platform without os version stays open
            to every build. One that can't be read counts as absent, as in containerd, so configured ones go through
            :func:`imagestore.platforms.windows.check_version` first.
        host: whose operating system an empty one stands for; this machine by default.
        is_guest: the platform is that of a guest with a kernel of its own. The answers are the same; their reasons
            then don't speak of process isolation.

    >>> from imagestore.platforms.spec import Platform
    >>> node = default_for(Platform("windows", "amd64", os_version="10.0.26100"))
    >>> entries = [Platform("windows", "amd64", os_version=v) for v in ("10.0.20348.2700", "10.0.26100.999")]
    >>> min(entries, key=node.sort_key).os_version
    '10.0.26100.999'
    """
    own = normalize(platform, host=host)
    if own.os == "windows":
        return _Windows(exact_requirement(own, host=host, is_guest=is_guest))
    if own.os == "darwin":
        return ordered(own, Platform("linux", own.architecture), host=host)
    if own.os == "freebsd":
        return ordered(own, Platform("linux", own.architecture, own.variant), host=host)
    return only(own, host=host)
