"""A runtime handler and its platform as a configuration writes them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import imagestore.platforms as platforms
from imagestore.config.tree import BUILT_IN, Location
from imagestore.platforms import windows
from imagestore.platforms.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.config.tree import Plain
    from imagestore.platforms.windows import WindowsVersion


class Isolation(enum.Enum):
    """How the runhcs shim separates a sandbox from the host (its option SandboxIsolation)."""

    PROCESS = "process"
    HYPERVISOR = "hypervisor"


@dataclass(frozen=True, slots=True)
class GuestPlatform:
    """A handler's ``guest_platform`` table (KEP-4216), as read.

    Attributes:
        os: operating system; empty, like the other members, when absent.
        architecture: of the guest.
        variant: of the architecture.
        os_version: for Windows ``major.minor.build[.revision]``.
        os_features: in the order given.
        location: of the table.
        locations: of each member that is set, by the field names above.
    """

    os: str
    architecture: str
    variant: str
    os_version: str
    os_features: tuple[str, ...]
    location: Location
    locations: Mapping[str, Location] = field(hash=False)


@dataclass(frozen=True, slots=True)
class PlatformText:
    """A platform specifier and where it is written.

    Attributes:
        text: for example ``windows(10.0.17763)/amd64``.
        location: of the key.
    """

    text: str
    location: Location


@dataclass(frozen=True, slots=True)
class RuntimeHandler:
    """One runtime handler of the node.

    Attributes:
        name: as CRI requests give it.
        runtime_type: of the shim, for example ``io.containerd.runc.v2``; may be empty.
        snapshotter: that containerd's pull unpacks its images with; empty if none is configured.
        container_snapshotter: that CreateContainer takes; likewise.
        options: the shim's options, as read.
        guest_platform: the KEP's table, or None when absent or all empty.
        runtime_platform: ``runtime_platforms.<name>.platform`` of the images section, or None.
        isolation: of a Windows sandbox; None for every shim but runhcs.
        sandbox_platform: the runhcs option of that name, or None.
        location: of the handler's table.
    """

    name: str
    runtime_type: str = ""
    snapshotter: str = ""
    container_snapshotter: str = ""
    options: Mapping[str, Plain] = field(default_factory=dict, hash=False)
    guest_platform: GuestPlatform | None = None
    runtime_platform: PlatformText | None = None
    isolation: Isolation | None = None
    sandbox_platform: PlatformText | None = None
    location: Location = BUILT_IN


#: Where each member of a platform that is set came from, in words for people.
Origin = dict[str, str]


class PlatformSource(enum.Enum):
    """What decided a handler's platform."""

    EXPLICIT = "explicit"
    GUEST_PLATFORM = "guest_platform"
    RUNTIME_PLATFORMS = "runtime_platforms"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class ResolvedPlatform:
    """The platform of one handler on one host: what advice about it needs.

    Attributes:
        handler: whose it is.
        platform: wanted from images.
        host: the node's, against which it was resolved.
        source: what decided.
    """

    handler: RuntimeHandler
    platform: Platform
    host: Platform
    source: PlatformSource

    @property
    def is_declared(self) -> bool:
        """Whether the call or the configuration names the platform, instead of the host giving it."""
        return self.source is not PlatformSource.HOST

    @property
    def host_version(self) -> WindowsVersion | None:
        """The node's Windows version; None when the node isn't Windows, or says none."""
        is_windows = platforms.normalize(self.host).os == "windows"
        return windows.parse_version(self.host.os_version) if is_windows else None


def sandbox_of(handler: RuntimeHandler, *, host: Platform) -> Platform | None:
    """The platform that a handler's option SandboxPlatform names, in normal form; None without one.

    Raises:
        InvalidPlatformError: it can't be read.
    """
    option = handler.sandbox_platform
    if option is None:
        return None
    return platforms.normalize(platforms.parse(option.text, host=host), host=host)


def is_same_kind(one: Platform, other: Platform) -> bool:
    """Whether two platforms in normal form have the same operating system and architecture."""
    return (one.os, one.architecture) == (other.os, other.architecture)


def complete(guest: GuestPlatform, *, host: Platform) -> tuple[Platform, Origin]:
    """Complete a ``guest_platform`` table from the host, in normal form, with the origin of each member set."""
    architecture, variant = guest.architecture, guest.variant
    origin = {name: f"guest_platform at {location}" for name, location in guest.locations.items()}
    if not guest.os:
        origin["os"] = "host"
    if not architecture:
        architecture, variant = host.architecture, variant or host.variant
        origin["architecture"] = "host"
        origin.setdefault("variant", "host")
    platform = Platform(guest.os or host.os, architecture, variant, guest.os_version, guest.os_features)
    return _settled(platforms.normalize(platform, host=host), origin)


def parse_text(text: PlatformText, *, host: Platform) -> tuple[Platform, Origin]:
    """Parse a ``runtime_platforms`` specifier, with the origin of each member set.

    Raises:
        InvalidPlatformError: it can't be read.
    """
    platform = platforms.parse(text.text, host=host)
    said = f"runtime_platforms at {text.location}"
    origin = same_origin(platform, said)
    if "/" not in text.text:
        # One part is an operating system or an architecture, and the host gives the other.
        is_os = platforms.normalize(Platform(text.text.partition("(")[0], ""), host=host).os == platform.os
        given_by_host = ("architecture", "variant") if is_os else ("os",)
        origin.update(dict.fromkeys(given_by_host, "host"))
    return _settled(platform, origin)


def same_origin(platform: Platform, origin: str) -> Origin:
    """One origin for every member that is set."""
    return {name: origin for name in platform.__slots__ if getattr(platform, name)}


def _settled(platform: Platform, origin: Origin) -> tuple[Platform, Origin]:
    """Drop origins of members that are empty; a variant that normalising added comes with its architecture."""
    kept = {name: origin.get(name, origin["architecture"]) for name in platform.__slots__ if getattr(platform, name)}
    return platform, kept
