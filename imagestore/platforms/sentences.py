"""The sentences of explanations; made only when somebody reads them.

Each names both values. What comes from documents is shortened, since a document may put anything there. Versions are
spoken of in two ways: a node under process isolation shares its kernel with the container, a guest brings its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.platforms import windows
from imagestore.platforms.fallback import pair_name
from imagestore.platforms.spec import format_all

if TYPE_CHECKING:
    from imagestore.platforms.fallback import Fallbacks, Pair
    from imagestore.platforms.spec import Platform
    from imagestore.platforms.windows import WindowsVersion

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
    from imagestore.platforms.windows_releases import name_of  # seldom needed: a table of its own

    host, image = name_of(host_build), name_of(image_build)
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
