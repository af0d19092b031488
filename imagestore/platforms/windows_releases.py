"""Which Windows release a build number is, so that messages can name it.

From Microsoft's release information pages and the tags of its base images (nanoserver, servercore, server, windows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Release:
    """A build and the names it goes by.

    Attributes:
        build: third number of the os version.
        server: name of the server release, or empty.
        client: name of the client release, or empty.
        tags: tags of base images for it, the usual one first; empty when there are no images.
    """

    build: int
    server: str = ""
    client: str = ""
    tags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Shortest name people use: the image tag, else the server's or the client's name."""
        return self.tags[0] if self.tags else self.server or self.client


_ALL: Final = (
    Release(14393, "Windows Server 2016", "Windows 10 1607", ("ltsc2016", "1607", "sac2016")),
    Release(15063, "", "Windows 10 1703"),
    Release(16299, "Windows Server 1709", "Windows 10 1709", ("1709",)),
    Release(17134, "Windows Server 1803", "Windows 10 1803", ("1803",)),
    Release(17763, "Windows Server 2019", "Windows 10 1809", ("ltsc2019", "1809")),
    Release(18362, "Windows Server 1903", "Windows 10 1903", ("1903",)),
    Release(18363, "Windows Server 1909", "Windows 10 1909", ("1909",)),
    Release(19041, "Windows Server 2004", "Windows 10 2004", ("2004",)),
    Release(19042, "Windows Server 20H2", "Windows 10 20H2", ("20H2",)),
    Release(19043, "", "Windows 10 21H1"),
    Release(19044, "", "Windows 10 21H2"),
    Release(19045, "", "Windows 10 22H2"),
    Release(20348, "Windows Server 2022", "", ("ltsc2022",)),
    Release(22000, "", "Windows 11 21H2"),
    Release(22621, "", "Windows 11 22H2"),
    Release(22631, "", "Windows 11 23H2"),
    Release(25398, "Windows Server, version 23H2"),
    Release(26100, "Windows Server 2025", "Windows 11 24H2", ("ltsc2025",)),
    Release(26200, "", "Windows 11 25H2"),
)

#: Known releases by build, oldest first.
RELEASES: Final[Mapping[int, Release]] = {release.build: release for release in _ALL}
_BUILDS_BY_TAG: Final = {tag.lower(): release.build for release in _ALL for tag in release.tags}


def build_of_tag(tag: str) -> int | None:
    """Build behind a base image tag, or None when the tag names none.

    >>> build_of_tag("ltsc2019")
    17763
    """
    return _BUILDS_BY_TAG.get(tag.lower())


def name_of(build: int) -> str:
    """Short name of a build for messages, or an empty text when it is no known release.

    >>> name_of(17763), name_of(22631), name_of(1)
    ('ltsc2019', 'Windows 11 23H2', '')
    """
    release = RELEASES.get(build)
    return "" if release is None else release.name


def describe(build: int) -> str:
    """Build number with its name.

    >>> describe(20348), describe(20349)
    ('20348 (ltsc2022)', '20349')
    """
    name = name_of(build)
    return f"{build} ({name})" if name else str(build)
