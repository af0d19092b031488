"""Undoes content codings (RFC 9110 section 8.4), bounded, so that what is in an answer can be judged."""

from __future__ import annotations

import zlib
from typing import Final

#: What is judged is never longer than this, in bytes.
MAX_DECODED: Final = 8 << 20
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def decode_content(data: bytes, coding: str) -> bytes | None:
    """The bytes without their coding; None when it is unknown, broken, or more than MAX_DECODED come out.

    >>> decode_content(b"as it is", "identity")
    b'as it is'
    """
    names = [name.strip().lower() for name in coding.split(",") if name.strip()]
    for name in reversed(names):
        if name == "identity":
            continue
        bits = _WINDOW_BITS.get(name)
        if bits is None:
            return None
        unpacker = zlib.decompressobj(bits)
        try:
            data = unpacker.decompress(data, MAX_DECODED)
        except zlib.error:
            return None
        if unpacker.unconsumed_tail or unpacker.unused_data:
            # More would come, or something hides behind the end.
            return None
    return data if len(data) <= MAX_DECODED else None
