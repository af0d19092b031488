"""The platform of an image, a host or a guest, as a value.

Members are those of the OCI image-spec (image-index.md, "platform" object) with Go's names as values. The value is
kept as given; normalising it is a separate step, because text form and document keep the original spelling.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Platform:
    """Operating system, architecture and what narrows them.

    Attributes:
        os: ``linux``, ``windows``, ...
        architecture: ``amd64``, ``arm64``, ...
        variant: of the architecture, for example ``v7``; empty when there is none.
        os_version: for Windows ``major.minor.build[.revision]``; empty when unknown.
        os_features: for example ``("win32k",)``, in the order given.

    >>> Platform("linux", "arm", "v7").variant
    'v7'
    """

    os: str
    architecture: str
    variant: str = ""
    os_version: str = ""
    os_features: tuple[str, ...] = ()
