"""What a random value looks like: long, mixed, and no digest. Names and versions that people choose are neither."""

from __future__ import annotations

import math
import re
import urllib.parse
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

_WORD: Final = re.compile(r"[A-Za-z0-9_+=~.-]{20,}")
_HEX: Final = re.compile(r"[0-9a-f]+|[0-9A-F]+")
# SHA-256, SHA-384 and SHA-512 in hex; anything else in hex is somebody's token.
_DIGEST_LENGTHS: Final = frozenset({64, 96, 128})
# Bits per character; words and names stay below, random base64 is above.
_RANDOM_BITS: Final = 3.5
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def entropy(text: str) -> float:
    """Shannon entropy in bits per character.

    >>> entropy("aaaa")
    0.0
    """
    counts = {character: text.count(character) for character in set(text)}
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) + 0.0


def is_random(word: str) -> bool:
    """Whether a word of 20 or more characters looks like a token rather than like a name, a version or a digest.

    >>> is_random("Zx8Qp2Lm9Vt4Rk7Wn1Hs6Jd"), is_random("python-3.13.0-slim-bookworm"), is_random("ab" * 32)
    (True, False, False)
    """
    if len(word) < 20 or _UUID.fullmatch(word):
        return False
    if _HEX.fullmatch(word):
        return len(word) not in _DIGEST_LENGTHS and len(set(word)) > 4
    digits = sum(one.isdigit() for one in word)
    if not digits or entropy(word) < _RANDOM_BITS:
        return False
    is_mixed = any(one.isupper() for one in word) and any(one.islower() for one in word)
    # Small letters and digits without a break, or with digits all over the place.
    return is_mixed or max(map(len, re.split(r"[-_.]", word))) >= 20 or digits >= len(word) // 3


def random_words(text: str) -> Iterator[str]:
    """Every word in a text that looks random, with the percent-encoding undone."""
    yield from (word for word in _WORD.findall(urllib.parse.unquote(text)) if is_random(word))


def has_random_part(path: str, plain: Container[str] = ()) -> bool:
    """Whether a path has a part that looks random, or parameters (``;name=value``)."""
    parts = urllib.parse.unquote(path).split("/")
    if any(";" in part and "=" in part for part in parts):
        return True
    return any(is_random(word) for part in parts if part not in plain for word in _WORD.findall(part))
