"""Text from outside, made harmless for terminals and logs."""

from __future__ import annotations

from typing import Final

# Control, format (bidirectional marks among them), surrogate, private use, line and paragraph separators.
_UNSAFE: Final = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: str) -> str:
    r"""Escape what a terminal would act on.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    return "".join(
        character.encode("unicode_escape").decode("ascii") if unicodedata.category(character) in _UNSAFE else character
        for character in text
    )
