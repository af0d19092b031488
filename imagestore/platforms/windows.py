"""Windows: reading os versions, and which image build runs on which host build.

A version is ``major.minor.build[.revision]``. The build names the release, the revision grows with every monthly
update. A container under process isolation shares the host's kernel, so its build must fit it:

* below build 20348 (Server 2022) only the host's own build runs;
* from 20348 on the kernel interface is stable: images run from the long-term release before the host's own generation
  (the floor) up to the host's build.

A container under Hyper-V isolation brings its own kernel: any build up to the host's runs.

The process rule is that of containerd's platform library 1.0.0-rc.5. Up to rc.4 the floor was the newest long-term
release below the host, so that a 26200 host refused ltsc2022 images; Microsoft's "Windows container version
compatibility" page agrees with rc.5 (and with the Hyper-V rule) in every cell it publishes. Revisions take no part in
either rule.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidPlatformError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Long-term server releases whose kernel interface is stable for newer hosts, oldest first.
LTSC_STABLE: Final = (20348, 26100)
#: First build whose kernel interface is stable for newer hosts (Server 2022, ltsc2022).
STABLE_INTERFACE: Final = LTSC_STABLE[0]

_CHECKED: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:\.[0-9]+)?")
_MAX_MAJOR: Final = 255
_MAX_BUILD: Final = 65535
_MAX_REVISION: Final = 2**32 - 1
_MOST_DIGITS: Final = len(str(_MAX_REVISION))
_SHOWN: Final = 60
_KEPT_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class WindowsVersion:
    """A version that could be read: major and minor up to 255, build up to 65535, and the revision if there is one."""

    major: int
    minor: int
    build: int
    revision: int | None = None

    @property
    def is_unset(self) -> bool:
        """Whether this is 0.0.0, which containerd takes for no version at all."""
        return not (self.major or self.minor or self.build)

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.build}"
        return text if self.revision is None else f"{text}.{self.revision}"


def parse_version(text: str) -> WindowsVersion | None:
    """Read ``major.minor.build``, and the revision behind a third dot if it can be read.

    Returns:
        None when it can't be read: fewer than two dots, anything but ASCII digits, a number too large.

    >>> parse_version("10.0.17763.4851")
    WindowsVersion(major=10, minor=0, build=17763, revision=4851)
    >>> parse_version("10.0") is None
    True
    """
    # Only short texts are cached: real versions are short and recur.
    return _parse_kept(text) if len(text) <= _KEPT_LENGTH else _parse(text)


def revision_of(text: str) -> int | None:
    """The revision alone, in fewer steps; None when there is none that can be read.

    >>> revision_of("10.0.17763.4851")
    4851
    """
    parts = text.split(".", 4)
    return _number(parts[3], _MAX_REVISION) if len(parts) > 3 else None


def check_version(text: str, *, what: str = "os version") -> WindowsVersion:
    """Read a version from a configuration, where a typing error must not pass: it would match every build.

    Args:
        text: ``major.minor.build`` or ``major.minor.build.revision``, digits and dots only.
        what: names the value in the error, for example the key it came from.

    Raises:
        InvalidPlatformError: it can't be read to its end, or is 0.0.0.

    >>> check_version("10.0.20348").build
    20348
    """
    version = parse_version(text) if _CHECKED.fullmatch(text) else None
    if version is None or version.is_unset or (version.revision is None and text.count(".") == 3):
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
        build = build_of_tag(text)
        example = "write for example 10.0.17763; `cmd /c ver` shows the version of a Windows host"
        raise InvalidPlatformError(
            f"{what} {shown!r}: expected major.minor.build[.revision] in digits, at most 255.255.65535",
            hint=example if build is None else f"{text} is build 10.0.{build}: write that",
        )
    return version


def stable_floor(host_build: int) -> int:
    """Oldest image build that a host with a stable kernel interface runs under process isolation.

    Args:
        host_build: 20348 or higher.

    >>> stable_floor(26200)
    20348
    """
    not_above = [build for build in LTSC_STABLE if build <= host_build]
    return not_above[-2] if len(not_above) > 1 else STABLE_INTERFACE


def oldest_process_compatible(host_build: int) -> int:
    """Oldest image build that a host runs under process isolation; the newest is its own.

    >>> oldest_process_compatible(19045), oldest_process_compatible(22631)
    (19045, 20348)
    """
    return host_build if host_build < STABLE_INTERFACE else stable_floor(host_build)


def process_compatible(host_build: int, image_build: int) -> bool:
    """Whether a host runs an image under process isolation.

    >>> process_compatible(26100, 20348), process_compatible(20348, 17763)
    (True, False)
    """
    return oldest_process_compatible(host_build) <= image_build <= host_build


def hyperv_compatible(host_build: int, image_build: int) -> bool:
    """Whether a host runs an image under Hyper-V isolation: any build that isn't newer than its own.

    >>> hyperv_compatible(20348, 17763), hyperv_compatible(17763, 20348)
    (True, False)
    """
    return image_build <= host_build


def _number(text: str, largest: int) -> int | None:
    if not (text.isascii() and text.isdigit()):
        return None
    # int() is slow on long texts; no limit has more digits.
    significant = text if len(text) <= _MOST_DIGITS else text.lstrip("0")
    if len(significant) > _MOST_DIGITS:
        return None
    value = int(significant or "0")
    return value if value <= largest else None


def _parse(text: str) -> WindowsVersion | None:
    parts = text.split(".", 4)
    if len(parts) < 3:
        return None
    major, minor = _number(parts[0], _MAX_MAJOR), _number(parts[1], _MAX_MAJOR)
    build = _number(parts[2], _MAX_BUILD)
    if major is None or minor is None or build is None:
        return None
    return WindowsVersion(major, minor, build, revision_of(text))


_parse_kept = functools.lru_cache(maxsize=1024)(_parse)


@dataclass(frozen=True, slots=True)
class Release:
    """A build and its names: server and client release (or empty), and tags of base images, the usual one first."""

    build: int
    server: str = ""
    client: str = ""
    tags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The image tag, else the server's or the client's name."""
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
