"""Texts for messages: from outside, made harmless for terminals and logs; counts and sizes."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def printable(text: str) -> str:
    r"""Escape what Python can't print: controls, formats (bidirectional marks), unassigned characters, odd spaces.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def is_utf8(text: str) -> bool:
    r"""Whether a text can be encoded as UTF-8; with a lone surrogate, which JSON can have, it can't.

    >>> is_utf8("ä"), is_utf8("\ud800")
    (True, False)
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def cut(text: str, most: int) -> str:
    """A text of at most so many characters, the last three dots where it was longer.

    >>> cut("abcdefgh", 8), cut("abcdefghi", 8)
    ('abcdefgh', 'abcde...')
    """
    return text if len(text) <= most else text[: most - 3] + "..."


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "image"), counted(0, "image"), counted(2, "entry", "entries")
    ('1 image', '0 images', '2 entries')
    """
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def scaled(byte_count: int) -> tuple[float, str]:
    """Bytes in the largest binary unit that there is at least one of.

    >>> scaled(1023), scaled(1536)
    ((1023.0, 'B'), (1.5, 'KiB'))
    """
    value, power = float(byte_count), 0
    while value >= 1024 and power < len(_UNITS) - 1:
        value, power = value / 1024, power + 1
    return value, _UNITS[power]


def size(byte_count: int) -> str:
    """Bytes for people, in binary units.

    >>> size(0), size(1536), size(5 * 2**30)
    ('0B', '1.50KiB', '5.00GiB')
    """
    value, unit = scaled(byte_count)
    decimals = 0 if unit == "B" or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f}{unit}"


def go_boolean(text: str) -> bool | None:
    """What Go's ``strconv.ParseBool`` reads; None for all other texts.

    >>> go_boolean("T"), go_boolean("0"), go_boolean("yes")
    (True, False, None)
    """
    if text in ("1", "t", "T", "true", "True", "TRUE"):
        return True
    return False if text in ("0", "f", "F", "false", "False", "FALSE") else None
