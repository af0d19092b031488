"""ARM variants and amd64 levels from the text of Linux's /proc/cpuinfo.

The ARM rules are those of containerd's platform library (version 1.0.0-rc.5), which crashes on machine names shorter
than four letters; here they leave the variant empty. The amd64 levels are those of the x86-64 psABI.
"""

from __future__ import annotations

from typing import Final

_ARM_VARIANTS: Final = {
    "8": "v8",
    "aarch64": "v8",
    "7": "v7",
    "7m": "v7",
    **{f"?({number})": "v7" for number in range(12, 18)},
    "6": "v6",
    "6tej": "v6",
    "5": "v5",
    "5t": "v5",
    "5te": "v5",
    "5tej": "v5",
    "4": "v4",
    "4t": "v4",
    "3": "v3",
}
#: CPU flags, by Linux's names, that each level adds to the one before; level 1 is every 64-bit processor.
_AMD64_LEVELS: Final = (
    frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"]),
    frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"]),
    frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
)


def field(cpuinfo: str, key: str) -> str | None:
    """Value of the first line with this key, in any case; None when there is none.

    >>> field("processor: 0\\nCPU architecture: 8\\n", "cpu architecture")
    '8'
    """
    for line in cpuinfo.split("\n"):
        name, colon, rest = line.partition(":")
        if colon and name.strip().lower() == key:
            return rest.partition(":")[0].strip()
    return None


def arm_variant(cpuinfo: str, machine: str, *, is_32bit: bool) -> str | None:
    """Variant of an ARM processor.

    Args:
        cpuinfo: text of /proc/cpuinfo.
        machine: the kernel's machine name, used when cpuinfo has no such line, as under emulation.
        is_32bit: whether the program is 32-bit.

    Returns:
        ``v3`` to ``v8``, ``unknown`` for other values, or None when there is no value.

    >>> arm_variant("CPU architecture: 7", "armv7l", is_32bit=True)
    'v7'
    """
    value = field(cpuinfo, "cpu architecture")
    if value is None:
        value = _from_machine(machine.lower())
    if value is None:
        return None
    if is_32bit and value == "7" and (field(cpuinfo, "model name") or "").lower().startswith("armv6-compatible"):
        # The kernel of the first Raspberry Pi boards says 7 on a processor of version 6.
        return "v6"
    return _ARM_VARIANTS.get(value.lower(), "unknown")


def amd64_variant(cpuinfo: str) -> str:
    """Level of an amd64 processor: ``v2`` to ``v4``, empty for level 1 (which is no variant) and without flags.

    >>> amd64_variant("flags : fpu lm sse2")
    ''
    """
    flags = frozenset((field(cpuinfo, "flags") or "").split())
    level = 1
    for needed in _AMD64_LEVELS:
        if not needed <= flags:
            break
        level += 1
    return f"v{level}" if level > 1 else ""


def _from_machine(machine: str) -> str | None:
    if machine == "aarch64":
        return "8"
    if machine.startswith("armv") and len(machine) > 4:
        return machine[4] if machine[4] in "345678" else "unknown"
    return None
