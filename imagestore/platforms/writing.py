"""The text form of a platform: writing; ``specifier`` reads it and has the grammar.

Writing doesn't normalise: ``linux/arm64/v8`` stays as it is. Parts are joined without the file-path rules that upstream
applies to ``.`` and ``..`` (see :mod:`imagestore.platforms.differences`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from imagestore.platforms.spec import Platform

_ESCAPES: Final = str.maketrans({"%": "%25", "+": "%2B", "(": "%28", ")": "%29", "/": "%2F"})
_SLASHES: Final = re.compile(r"/{2,}")


def format(platform: Platform) -> str:  # noqa: A001 - the pair of parse, under the name that containerd's users know
    """Write ``os/architecture/variant``, empty parts left out; ``unknown`` when there is no operating system.

    >>> from imagestore.platforms import Platform
    >>> format(Platform("linux", "arm64", "v8"))
    'linux/arm64/v8'
    """
    return _join(platform.os, platform) if platform.os else "unknown"


def format_all(platform: Platform) -> str:
    """Write the long form, with os version and features behind the operating system.

    >>> from imagestore.platforms import Platform
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
