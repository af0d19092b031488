"""The platform of this machine, or of another one from given facts.

The rules are those of containerd's DefaultSpec (containerd/platforms 1.0.0-rc.5): names as Go has them, a variant for
arm and arm64 only, on Windows ``major.minor.build`` without revision. Two more facts are added on request: the amd64
level (which Docker's daemon adds and containerd doesn't) and the Windows revision.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import imagestore.platforms.cpuinfo as cpu
from imagestore.errors import InvalidPlatformError
from imagestore.platforms.platform import Platform

_logger: Final = logging.getLogger(__name__)

#: Beginnings of ``sys.platform``, and the names that ``platform.system()`` has instead, by Go's name.
_SYSTEMS: Final = {
    "linux": "linux",
    "android": "android",
    "win": "windows",
    "cygwin": "windows",
    "msys": "windows",
    "darwin": "darwin",
    "macos": "darwin",
    "ios": "ios",
    "freebsd": "freebsd",
    "netbsd": "netbsd",
    "openbsd": "openbsd",
    "dragonfly": "dragonfly",
    "sunos": "solaris",
    "aix": "aix",
    "gnu": "hurd",
    "zos": "zos",
    "emscripten": "js",
}
#: Words in the kernel's version text of the free descendants of Solaris.
_ILLUMOS_WORDS: Final = ("illumos", "omnios", "joyent", "oi_")
_MACHINES: Final = {
    "x86_64": "amd64",
    "amd64": "amd64",
    "x64": "amd64",
    "i86pc": "amd64",
    "x86": "386",
    "aarch64": "arm64",
    "arm64": "arm64",
    "aarch64_be": "arm64be",
    "arm": "arm",
    "evbarm": "arm",
    "ppc64le": "ppc64le",
    "powerpc64le": "ppc64le",
    "ppc": "ppc",
    "powerpc": "ppc",
    "power macintosh": "ppc",
    "riscv64": "riscv64",
    "riscv32": "riscv",
    "loongarch64": "loong64",
    "s390x": "s390x",
    "s390": "s390",
    "sun4u": "sparc64",
    "sun4v": "sparc64",
    "sparc64": "sparc64",
    "sparc": "sparc",
    "wasm32": "wasm",
    "wasm64": "wasm",
}
#: Machine names that say nothing of the byte order: (big-endian, little-endian).
_BY_BYTE_ORDER: Final = {
    "mips": ("mips", "mipsle"),
    "mips64": ("mips64", "mips64le"),
    "octeon": ("mips64", "mips64le"),
    "ppc64": ("ppc64", "ppc64le"),
    "powerpc64": ("ppc64", "ppc64le"),
}
#: What a 32-bit program sees on a 64-bit kernel.
_NARROW: Final = {
    "amd64": "386",
    "arm64": "arm",
    "mips64": "mips",
    "mips64le": "mipsle",
    "s390x": "s390",
    "ppc64": "ppc",
}
#: What 64-bit kernels report to programs started under linux32 or setarch, also to 64-bit ones.
_PERSONALITIES: Final = {
    **{f"i{number}86": "x86_64" for number in range(3, 7)},
    "s390": "s390x",
    "ppc": "ppc64",
    "ppcle": "ppc64le",
    "mips": "mips64",
    "sparc": "sparc64",
    "riscv32": "riscv64",
}
#: Parts of a Windows version with their largest values, as containerd reads them.
_VERSION_PARTS: Final = (("major version", 255), ("minor version", 255), ("build", 65535))
_MAX_REVISION: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Facts:
    """What detect() needs to know of a machine.

    Attributes:
        system: as in ``sys.platform`` or ``platform.system()``.
        machine: the kernel's machine name, as in ``os.uname().machine`` or ``PROCESSOR_ARCHITECTURE``.
        kernel_version: the kernel's version text, which tells illumos from Solaris.
        cpuinfo: text of /proc/cpuinfo; None when it can't be read, or isn't needed.
        windows_version: major, minor, build; what follows doesn't count.
        windows_revision: the update revision (UBR); None when unknown.
        bits: 64 or 32, of the program; None for the machine's.
        byte_order: ``little`` or ``big``.
    """

    system: str
    machine: str
    kernel_version: str = ""
    cpuinfo: str | None = None
    windows_version: tuple[int, ...] | None = None
    windows_revision: int | None = None
    bits: int | None = None
    byte_order: str = "little"


def detect(
    facts: Facts | None = None, *, with_amd64_level: bool = False, with_windows_revision: bool = False
) -> Platform:
    """The platform of the machine that has these facts; by default of this one.

    Args:
        facts: of a machine; :func:`this_machine` with some replaced, or those of another one.
        with_amd64_level: add the microarchitecture level (v2 to v4) as variant; containerd doesn't.
        with_windows_revision: add the revision to the os version; containerd doesn't.

    Raises:
        InvalidPlatformError: the Windows version or its revision is none.

    >>> detect(Facts("Linux", "aarch64", cpuinfo="CPU architecture: 8"))
    Platform(os='linux', architecture='arm64', variant='v8', os_version='', os_features=())
    >>> detect(Facts("win32", "AMD64", windows_version=(10, 0, 20348))).os_version
    '10.0.20348'
    """
    if facts is None:
        if not with_amd64_level and not with_windows_revision:
            return _detected()
        facts = this_machine(with_cpuinfo=with_amd64_level)
    name = _os_name(facts)
    architecture = _architecture(facts, name)
    variant = _variant(facts, name, architecture)
    if with_amd64_level and architecture == "amd64" and name in ("linux", "android"):
        variant = cpu.amd64_variant(facts.cpuinfo or "")
    version = ""
    if name == "windows" and facts.windows_version is not None:
        version = ".".join(map(str, _three(facts.windows_version)))
        if with_windows_revision and facts.windows_revision is not None:
            version += f".{_number(facts.windows_revision, 'revision', _MAX_REVISION)}"
    return Platform(name, architecture, variant, version)


@functools.cache
def _detected() -> Platform:
    return detect(this_machine())


def this_machine(*, with_cpuinfo: bool = False) -> Facts:
    """The facts of this machine; /proc/cpuinfo is read for ARM's variant, or on request.

    With many processors it is long, and older kernels wake each of them to write it.
    """
    version, revision = _windows_version()
    kernel_version = ""
    if sys.platform != "win32":
        kernel_version = os.uname().version
    machine = _machine()
    return Facts(
        system=sys.platform,
        machine=machine,
        kernel_version=kernel_version,
        cpuinfo=_cpuinfo() if with_cpuinfo or machine.lower().startswith(("arm", "aarch64")) else None,
        windows_version=version,
        windows_revision=revision,
        bits=64 if sys.maxsize > 2**32 else 32,
        byte_order=sys.byteorder,
    )


def _os_name(facts: Facts) -> str:
    system = facts.system.lower()
    for beginning, name in _SYSTEMS.items():
        if system.startswith(beginning):
            if name == "solaris" and any(word in facts.kernel_version.lower() for word in _ILLUMOS_WORDS):
                return "illumos"
            return name
    return system


def _architecture(facts: Facts, name: str) -> str:
    machine = facts.machine.lower()
    if facts.bits == 64:
        machine = _PERSONALITIES.get(machine, machine)
    if name == "aix":
        return "ppc64"  # its uname gives a serial number
    if machine in _BY_BYTE_ORDER:
        wide = _BY_BYTE_ORDER[machine][facts.byte_order == "little"]
    elif machine in _MACHINES:
        wide = _MACHINES[machine]
    elif machine.startswith("armv8") and facts.bits != 32:
        wide = "arm64"
    elif machine.startswith("arm"):
        wide = "armbe" if facts.byte_order == "big" else "arm"
    elif machine[:1] == "i" and machine[2:] == "86":
        wide = "386"
    else:
        wide = machine
    return _NARROW.get(wide, wide) if facts.bits == 32 else wide


def _variant(facts: Facts, name: str, architecture: str) -> str:
    if architecture not in ("arm", "arm64"):
        return ""
    if name in ("windows", "darwin"):
        return "v8" if architecture == "arm64" else "v7"
    if name == "freebsd":
        return "v8" if architecture == "arm64" else "unknown"
    if name not in ("linux", "android"):
        return ""
    variant = None
    if facts.cpuinfo is not None:
        variant = cpu.arm_variant(facts.cpuinfo, facts.machine, is_32bit=architecture == "arm")
    if variant is None:
        _logger.warning("can't tell the ARM variant of this host", extra={"machine": facts.machine})
    return variant or ""


def _machine() -> str:
    if sys.platform == "win32":
        # Of the program's own kind, also under emulation, as Go's name is.
        return os.environ.get("PROCESSOR_ARCHITECTURE", "")
    else:
        return os.uname().machine


def _cpuinfo() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _three(version: object) -> tuple[int, int, int]:
    """Major, minor and build, from what callers without a type checker give too."""
    parts = version if isinstance(version, Sequence) and not isinstance(version, str) else ()
    if len(parts) < len(_VERSION_PARTS):
        raise InvalidPlatformError(
            f"windows version: expected three numbers (major, minor, build), "
            f"got {len(parts)} in a {type(version).__name__}",
            hint="give for example (10, 0, 20348)",
        )
    major, minor, build = (
        _number(each, what, largest) for each, (what, largest) in zip(parts, _VERSION_PARTS, strict=False)
    )
    return major, minor, build


def _number(value: object, what: str, largest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        # Python refuses to write integers of thousands of digits.
        is_huge = isinstance(value, int) and value.bit_length() > 64
        came = "a huge one" if is_huge else f"{value!r:.40}"
        raise InvalidPlatformError(f"windows {what}: expected a number from 0 to {largest}, got {came}")
    return value


def _windows_version() -> tuple[tuple[int, int, int] | None, int | None]:
    """The true version and revision of a Windows host."""
    if sys.platform == "win32":
        import winreg

        # A program without a manifest is shown an old version. The second one is a file's, which stays at 26100 where
        # an enablement package makes Windows 26200 of it.
        shown = sys.getwindowsversion()
        version = max((shown[0], shown[1], shown[2]), shown.platform_version)
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Microsoft\Windows NT\CurrentVersion") as key:
                revision = winreg.QueryValueEx(key, "UBR")[0]
        except OSError:
            return version, None
        return version, revision if isinstance(revision, int) else None
    else:
        return None, None
