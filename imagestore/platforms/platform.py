"""The platform of an image, a host or a guest, as a value.

Members are those of the OCI image-spec (image-index.md, "platform" object) with Go's names as values. The value is
kept as given; normalising it is a separate step, because text form and document keep the original spelling.

The text form is ``os(version+feature)/architecture/variant``; ``specifier`` reads it and has the grammar. Parts are
joined without the file-path rules that upstream applies to ``.`` and ``..`` (docs/matching.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_ESCAPES: Final = str.maketrans({"%": "%25", "+": "%2B", "(": "%28", ")": "%29", "/": "%2F"})
_SLASHES: Final = re.compile(r"/{2,}")


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

    def __str__(self) -> str:
        """The text form, with version and features; :func:`imagestore.platforms.parse` reads it."""
        return format_all(self)


def format(platform: Platform) -> str:  # noqa: A001 - the pair of parse, under the name that containerd's users know
    """Write ``os/architecture/variant``, empty parts left out; ``unknown`` when there is no operating system.

    >>> format(Platform("linux", "arm64", "v8"))
    'linux/arm64/v8'
    """
    return _join(platform.os, platform) if platform.os else "unknown"


def format_all(platform: Platform) -> str:
    """Write the long form, with os version and features behind the operating system.

    >>> format_all(Platform("windows", "amd64", os_version="10.0.17763", os_features=("win32k",)))
    'windows(10.0.17763+win32k)/amd64'
    """
    if not platform.os:
        return "unknown"
    if not platform.os_version and not platform.os_features:
        return _join(platform.os, platform)
    features = sorted({feature for feature in platform.os_features if feature})
    options = "".join([escape(platform.os_version), *("+" + escape(feature) for feature in features)])
    return _join(f"{platform.os}({options})" if options else platform.os, platform)


def escape(text: str) -> str:
    """Encode what would end a version or feature inside the brackets."""
    return text.translate(_ESCAPES)


def _join(os_part: str, platform: Platform) -> str:
    joined = "/".join(part for part in (os_part, platform.architecture, platform.variant) if part)
    if "//" in joined or joined.endswith("/"):
        # Only documents can hold slashes inside a part; upstream folds them.
        joined = _SLASHES.sub("/", joined).rstrip("/") or "/"
    return joined
