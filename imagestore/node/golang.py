"""What the texts of a kubelet look like: quoted strings and lists of errors as Go prints them.

Rules: ``strconv.Quote`` and the aggregate of Kubernetes' apimachinery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHORT_ESCAPES: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def quoted(text: str) -> str:
    """In double quotes, with what can't be printed escaped.

    >>> quoted('a"b')
    '"a\\\\"b"'
    """
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def aggregate(texts: Iterable[str]) -> str:
    """Several errors as one text: each only once, in brackets when more than one is left.

    >>> aggregate(["a", "b", "a"]), aggregate(["a", "a"])
    ('[a, b]', 'a')
    """
    once = list(dict.fromkeys(texts))
    return once[0] if len(once) == 1 else f"[{', '.join(once)}]"
