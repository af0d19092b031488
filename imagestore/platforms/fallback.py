"""What else a processor runs: for each platform the architectures and variants to try, best first.

The lists are those of containerd's platform library 1.0.0-rc.5 (its ``Only``): amd64 falls back level by level and
then to 386, arm version by version down to v5, arm64 along its own versions and then to arm. An unknown arm64 variant
has an empty list, so that nothing matches. Levels are counted, not listed: ``v999999999`` costs no more than ``v2``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.platforms.normalize import normalize_architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

Pair = tuple[str, str]

_LEVEL: Final = re.compile(r"v([1-9][0-9]{0,18})")
_NUMBER: Final = re.compile(r"\+?0*([0-9]{1,19})")
_INT64_MAX: Final = 2**63 - 1
_AMD64_LOWEST: Final = 1
_ARM_LOWEST: Final = 5
_ARM_BELOW_ARM64: Final = (("arm", "v8"), ("arm", "v7"), ("arm", "v6"), ("arm", "v5"))


def _versions(major: int, minor: int) -> tuple[str, ...]:
    """Versions of one major down from a minor, in normal form, where v8 is no variant."""
    return (*(f"v{major}.{each}" for each in range(minor, 0, -1)), "" if major == 8 else f"v{major}")


#: What each known arm64 variant runs. Armv9.x contains Armv8.(x+5), and the v8 line ends at v8.9.
_ARM64: Final = {
    **{_versions(8, minor)[0]: _versions(8, minor) for minor in range(10)},
    **{_versions(9, minor)[0]: _versions(9, minor) + _versions(8, min(minor + 5, 9)) for minor in range(8)},
}


@dataclass(frozen=True, slots=True)
class Fallbacks:
    """Accepted architectures and variants, in normal form, with their place in the order of preference.

    Attributes:
        own: the wanted pair itself.
        positions: place of each listed pair; 0 is best.
        counted: an architecture whose levels below ``top`` and not below ``lowest`` are accepted too.
        top: the wanted level; 0 when no levels are counted.
        lowest: the lowest accepted level.
    """

    own: Pair
    positions: Mapping[Pair, int] = field(hash=False)
    counted: str = ""
    top: int = 0
    lowest: int = 0

    def position(self, architecture: str, variant: str) -> int | None:
        """Place of a pair in normal form, or None when it isn't accepted."""
        place = self.positions.get((architecture, variant))
        if place is not None or not self.top or architecture != self.counted:
            return place
        level = self._level(variant)
        return self.top - level if self.lowest <= level < self.top else None

    def accepts_architecture(self, architecture: str) -> bool:
        """Whether at least one variant of this architecture is accepted."""
        for accepted, _ in self.positions:  # noqa: SIM110 - a loop, not any(): asked for most entries of an index
            if accepted == architecture:
                return True
        return False

    def names(self) -> str:
        """What is accepted, best first, for messages.

        >>> fallbacks("amd64", "v3").names()
        'amd64/v3 down to amd64, 386'
        """
        listed = [pair_name(pair) for pair in self.positions]
        if self.top > self.lowest:
            # normalized, so that level 1 of amd64 shows without variant
            listed[0] += f" down to {pair_name(normalize_architecture(self.counted, f'v{self.lowest}'))}"
        return ", ".join(listed)

    def _level(self, variant: str) -> int:
        if not variant and self.counted == "amd64":
            return _AMD64_LOWEST
        found = _LEVEL.fullmatch(variant)
        return 0 if found is None else int(found[1])


def pair_name(pair: Pair) -> str:
    """Architecture and variant as text."""
    return "/".join(part for part in pair if part)


def exactly(architecture: str, variant: str) -> Fallbacks:
    """Nothing but the pair itself (in normal form)."""
    return Fallbacks((architecture, variant), {(architecture, variant): 0})


def fallbacks(architecture: str, variant: str) -> Fallbacks:
    """Everything that a processor of this kind (in normal form) runs.

    >>> fallbacks("arm", "v7").position("arm", "v5")
    2
    """
    own = (architecture, variant)
    if architecture == "amd64":
        top = _number(variant)
        steps = top - _AMD64_LOWEST if top > _AMD64_LOWEST else 0
        return Fallbacks(own, {own: 0, ("386", ""): steps + 1}, "amd64", top if steps else 0, _AMD64_LOWEST)
    if architecture == "arm":
        top = _number(variant)
        return Fallbacks(own, {own: 0}, "arm", top if top > _ARM_LOWEST else 0, _ARM_LOWEST)
    if architecture == "arm64":
        pairs = [("arm64", each) for each in _ARM64.get(variant, ())]
        if pairs:
            pairs += _ARM_BELOW_ARM64
        return Fallbacks(own, {pair: place for place, pair in enumerate(pairs)})
    return exactly(architecture, variant)


def _number(variant: str) -> int:
    """The level in a wanted variant, with or without ``v``; 0 when it isn't a number that Go's int holds."""
    found = _NUMBER.fullmatch(variant.removeprefix("v"))
    value = 0 if found is None else int(found[1])
    return value if value <= _INT64_MAX else 0
