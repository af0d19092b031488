"""The normal form: one spelling for every platform, so that platforms compare as text.

The tables are those of containerd's platform library (version 1.0.0-rc.5), so that the same spellings are equal for
us and for it: only what is listed is translated (``x86_64`` is, ``i686`` isn't).
"""

from __future__ import annotations

from typing import Final

from imagestore.platforms.platform import Platform

#: What Go's toolchain calls operating systems; one of these alone is a complete specifier.
KNOWN_OPERATING_SYSTEMS: Final = frozenset(
    {
        *("aix", "android", "darwin", "dragonfly", "freebsd", "hurd", "illumos", "ios", "js", "linux", "nacl"),
        *("netbsd", "openbsd", "plan9", "solaris", "windows", "zos"),
    }
)
#: What Go's toolchain calls architectures; one of these alone is a complete specifier too.
KNOWN_ARCHITECTURES: Final = frozenset(
    {
        *("386", "amd64", "amd64p32", "arm", "armbe", "arm64", "arm64be", "loong64", "mips", "mipsle", "mips64"),
        *("mips64le", "mips64p32", "mips64p32le", "ppc", "ppc64", "ppc64le", "riscv", "riscv64", "s390", "s390x"),
        *("sparc", "sparc64", "wasm"),
    }
)

_OS_NAMES: Final = {"macos": "darwin"}
_ARCHITECTURE_NAMES: Final = {"i386": "386", "x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64"}
#: Names that fix the variant, whatever variant is given next to them.
_FIXED: Final = {"i386": ("386", ""), "armhf": ("arm", "v7"), "armel": ("arm", "v6")}
_VARIANT_NAMES: Final = {
    "amd64": {"v1": ""},
    "arm64": {"8": "", "v8": "", "v8.0": "", "9": "v9", "9.0": "v9", "v9.0": "v9"},
    "arm": {"": "v7", "5": "v5", "6": "v6", "7": "v7", "8": "v8"},
}
#: The pairs that nearly every index entry has, so that they cost one look-up.
_COMMON: Final = {
    ("amd64", ""): ("amd64", ""),
    ("386", ""): ("386", ""),
    ("arm64", ""): ("arm64", ""),
    ("arm64", "v8"): ("arm64", ""),
    ("arm", ""): ("arm", "v7"),
    ("arm", "v5"): ("arm", "v5"),
    ("arm", "v6"): ("arm", "v6"),
    ("arm", "v7"): ("arm", "v7"),
    ("ppc64le", ""): ("ppc64le", ""),
    ("s390x", ""): ("s390x", ""),
    ("riscv64", ""): ("riscv64", ""),
    ("unknown", ""): ("unknown", ""),
}


def normalize(platform: Platform, *, host: Platform | None = None) -> Platform:
    """Translate a platform to its normal form; doing it twice changes nothing more.

    Features are sorted without doubles; the os version stays as it is. An empty operating system is the host's, which
    is this machine by default.

    >>> normalize(Platform("Linux", "aarch64", "v8"))
    Platform(os='linux', architecture='arm64', variant='', os_version='', os_features=())
    """
    architecture, variant = normalize_architecture(platform.architecture, platform.variant)
    return Platform(
        os=normalize_os(platform.os, host=host),
        architecture=architecture,
        variant=variant,
        os_version=platform.os_version,
        os_features=normalize_features(platform.os_features),
    )


def normalize_os(name: str, *, host: Platform | None = None) -> str:
    """Normal name of an operating system; an empty one is the host's.

    >>> normalize_os("macOS")
    'darwin'
    """
    if not name:
        # Rarely needed, and slower to import than this module.
        import imagestore.platforms.host as host_module

        return (host if host is not None else host_module.detect()).os
    lowered = lower(name)
    return _OS_NAMES.get(lowered, lowered)


def normalize_architecture(architecture: str, variant: str) -> tuple[str, str]:
    """Normal names of architecture and variant, which are translated together.

    >>> normalize_architecture("armel", "v7")
    ('arm', 'v6')
    """
    common = _COMMON.get((architecture, variant))
    if common is not None:
        return common
    architecture, variant = lower(architecture), lower(variant)
    fixed = _FIXED.get(architecture)
    if fixed is not None:
        return fixed
    architecture = _ARCHITECTURE_NAMES.get(architecture, architecture)
    names = _VARIANT_NAMES.get(architecture)
    return architecture, variant if names is None else names.get(variant, variant)


def normalize_features(features: tuple[str, ...]) -> tuple[str, ...]:
    """Features sorted and without doubles; an empty text stays one of them."""
    return tuple(sorted(set(features))) if features else ()


def lower(text: str) -> str:
    """Lower case letter by letter, as Go does it.

    Python's own also looks at neighbours (a sigma at a word's end) and may make one letter two; documents, unlike
    specifiers, can hold such letters.
    """
    if text.isascii():
        return text.lower()
    return "".join(letter.lower()[:1] for letter in text)
