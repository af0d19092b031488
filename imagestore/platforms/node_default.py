"""What a node of some platform uses when nothing else is said.

Windows nodes take their own build's images by the version rule, without 386 or arm; macOS and FreeBSD nodes take
Linux images too; all others take their platform and what else its processor runs. So does containerd
(containerd/platforms 1.0.0-rc.5, ``Default``).

Among matching Windows images containerd prefers the greater os version as text. Here versions are compared as
numbers: the nearest build first, within it the wanted revision, then the highest below it, then the highest. See
:mod:`imagestore.platforms.differences`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import imagestore.platforms.windows as windows
from imagestore.platforms.matcher import BaseMatcher, only, ordered
from imagestore.platforms.normalize import normalize
from imagestore.platforms.platform import Platform
from imagestore.platforms.requirement import exact_requirement

if TYPE_CHECKING:
    from imagestore.platforms.matcher import Matcher
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

    >>> from imagestore.platforms.platform import Platform
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
