"""A runtime handler and its platform as a configuration writes them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imagestore.config.location import BUILT_IN, Location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.config.tree import Plain


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
        snapshotter: name of the snapshotter its images are unpacked with; empty when none is configured.
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
    options: Mapping[str, Plain] = field(default_factory=dict, hash=False)
    guest_platform: GuestPlatform | None = None
    runtime_platform: PlatformText | None = None
    isolation: Isolation | None = None
    sandbox_platform: PlatformText | None = None
    location: Location = BUILT_IN
