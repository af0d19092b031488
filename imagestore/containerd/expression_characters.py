"""Characters as regular expressions of callers name them: one by one, by ranges, by class, and whatever their case."""

from __future__ import annotations

import functools
import string
import unicodedata
from dataclasses import dataclass
from typing import Final

_DIGIT: Final = frozenset(string.digits)
WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_SPACE: Final = frozenset("\t\n\f\r ")
#: What follows a backslash.
PERL: Final = {"d": _DIGIT, "w": WORD, "s": _SPACE}
#: What stands between ``[:`` and ``:]``.
POSIX: Final = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": frozenset(map(chr, range(0x80))),
    "blank": frozenset("\t "),
    "cntrl": frozenset(map(chr, [*range(0x20), 0x7F])),
    "digit": _DIGIT,
    "graph": frozenset(map(chr, range(0x21, 0x7F))),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(map(chr, range(0x20, 0x7F))),
    "punct": frozenset(string.punctuation),
    "space": _SPACE | {"\v"},
    "upper": frozenset(string.ascii_uppercase),
    "word": WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CATEGORIES: Final = (
    *("Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No"),
    *("Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"),
)
#: No character above has another case.
_LAST_CASED: Final = 0x1E943


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """Which characters fit: single ones, ranges, Unicode categories and other sets; or all others."""

    members: frozenset[str] = frozenset()
    ranges: tuple[tuple[str, str], ...] = ()
    categories: frozenset[str] = frozenset()
    sets: tuple[CharacterSet, ...] = ()
    is_negated: bool = False
    ignores_case: bool = False

    def has(self, character: str) -> bool:
        """Whether a character fits."""
        # Case is ignored before a set is negated: [^a] is neither a nor A.
        alike = _alike().get(character, character) if self.ignores_case else character
        found = any(map(self._lists, alike)) or any(each.has(character) for each in self.sets)
        return found != self.is_negated

    def _lists(self, character: str) -> bool:
        return (
            character in self.members
            or any(low <= character <= high for low, high in self.ranges)
            or (bool(self.categories) and unicodedata.category(character) in self.categories)
        )


def categories(name: str) -> frozenset[str]:
    """The general categories of Unicode that a name stands for: one or two letters; none when it isn't known.

    >>> sorted(categories("Z"))
    ['Zl', 'Zp', 'Zs']
    """
    return frozenset(each for each in _CATEGORIES if name in (each, each[0]))


@functools.cache
def _alike() -> dict[str, str]:
    """For each character that has another case, all that differ from it by case only."""
    groups: dict[str, str] = {}
    for character in map(chr, range(_LAST_CASED + 1)):
        folded = _folded(character)
        if folded != character:
            groups[folded] = groups.get(folded, folded) + character
    return {character: group for group in groups.values() for character in group}


def _folded(character: str) -> str:
    """Unicode's simple case folding, which never makes one character several."""
    found = character.casefold()
    if len(found) > 1:
        found = character.lower()
    return found if len(found) == 1 else character
