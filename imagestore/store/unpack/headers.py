"""The blocks and records that tar headers are made of: USTAR and PAX (POSIX.1-2001, pax), and GNU tar's own forms.

What readers read differently is refused. Where this reader has to choose, it does what Go's ``archive/tar`` does, since
containerd reads layers with that.
"""

from __future__ import annotations

import functools
import re
import zlib
from typing import Final

from imagestore.store.unpack.entry import BLOCK

_HALF: Final = BLOCK // 2
_CHECKSUM: Final = slice(148, 156)
_BLANK_CHECKSUM: Final = 8 * ord(" ")
_OWNER_FIELDS: Final = (slice(0, 8), slice(8, 16), slice(16, 24))
_RECORD_LENGTH: Final = re.compile(rb"([1-9][0-9]{0,7}) ")
_POSITIVE, _NEGATIVE = 0x80, 0xFF
_NUL_OR_SPACE: Final = b" \0"


def number(raw: bytes) -> int:
    r"""A numeric field: octal digits up to a NUL or a space, or GNU's base 256.

    Raises:
        ValueError: it is neither.

    >>> number(b"0000644\0"), number(b"   17 \0 "), number(b"\x80\0\0\0\0\0\1\0"), number(b"\xff" * 8), number(bytes(8))
    (420, 15, 256, -1, 0)
    """
    text = raw.partition(b"\0")[0].strip(b" ")
    if text.isdigit():
        return int(text, 8)
    if raw[0] == _POSITIVE:
        return int.from_bytes(raw[1:])
    if raw[0] == _NEGATIVE:
        return int.from_bytes(raw[1:]) - (1 << 8 * (len(raw) - 1))
    # Go skips NULs in front of digits, tarfile takes such a field for 0.
    if text or raw.strip(_NUL_OR_SPACE):
        raise ValueError(f"{raw!r} is no number")
    return 0


#: Modes, owners and times repeat from entry to entry.
known_number = functools.lru_cache(1024)(number)


@functools.lru_cache(1024)
def owner(raw: bytes) -> tuple[int, int, int]:
    """The fields mode, uid and gid, which are next to each other.

    Raises:
        ValueError: one is no number.
    """
    mode, uid, gid = (number(raw[field]) for field in _OWNER_FIELDS)
    return mode, uid, gid


def is_intact(block: bytes) -> bool:
    """Whether the checksum of a header fits: the sum of its bytes, with spaces in the place of the checksum.

    Raises:
        ValueError: the checksum is no number.
    """
    field = block[_CHECKSUM]
    # The lower half of Adler-32 is 1 and the sum of the bytes, modulo 65521, which 256 bytes don't reach. It takes a
    # tenth of the time that sum() takes.
    plain = (zlib.adler32(block[:_HALF]) & 0xFFFF) + (zlib.adler32(block[_HALF:]) & 0xFFFF) - 2
    found = plain - sum(field) + _BLANK_CHECKSUM
    digits = field[:6]
    # Six digits, NUL and space are usual.
    stated = int(digits, 8) if not field[6] and digits.isdigit() else number(field)
    # Old programs added bytes as signed numbers.
    return stated == found or stated == found - 256 * sum(byte > 127 for byte in block[:148] + block[156:])


def text(raw: bytes) -> bytes:
    """A text field, which ends with its first NUL, if it has one."""
    return raw.partition(b"\0")[0]


def name_of(block: bytes) -> bytes:
    """The name that a header has; only POSIX' format has a prefix, where GNU's has times."""
    name = block[:100].partition(b"\0")[0]
    if block[345] and block[257:263] == b"ustar\0":
        return text(block[345:500]) + b"/" + name
    return name


def records_of(data: bytes) -> list[tuple[str, bytes]]:
    r"""The keywords and values of a PAX extended header: ``<length> <keyword>=<value>`` and a line feed each.

    Raises:
        ValueError: something else is there.

    >>> records_of(b"12 path=a/b\n9 uid=12\n")
    [('path', b'a/b'), ('uid', b'12')]
    """
    found = []
    start = 0
    while start < len(data):
        head = _RECORD_LENGTH.match(data, start)
        end = start + int(head.group(1)) if head else 0
        if head is None or not head.end() < end <= len(data) or data[end - 1] != ord("\n"):
            raise ValueError(f"{data[start : start + 40]!r} is no record of an extended header")
        keyword, equals, value = data[head.end() : end - 1].partition(b"=")
        if not keyword or not equals:
            raise ValueError(f"{data[start : start + 40]!r} is no record of an extended header")
        found.append((keyword.decode("utf-8", "surrogateescape"), value))
        start = end
    return found
