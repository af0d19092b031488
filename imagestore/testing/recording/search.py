"""Finds known values in every spelling in which they may have been written.

Two ways, because each finds what the other can't. Small texts are decoded (percent-encoding, JSON escapes, base64)
and the plain value is looked for in each result. Large bodies are read once in pieces and searched for a list of
encoded forms.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import urllib.parse
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from imagestore.testing.images.bodies import Body

# Shorter values are looked for as whole words, and not in large bodies, where they would be found by chance.
_SHORT: Final = 6
# The search looks at a body in pieces with this much overlap; no secret is longer.
_OVERLAP: Final = 16 << 10
_BASE64_WORD: Final = re.compile(rb"[A-Za-z0-9+/_-]{4,}")
_JSON_ESCAPE: Final = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
# How many decodings are tried on top of each other: JSON inside JSON, base64 of a percent-encoded value.
_DEPTH: Final = 3


class Search:
    """A search for some values.

    Args:
        values: secrets as they are, and where each was seen, for messages; empty where that isn't known.
        users: names that a secret may be joined to, as in ``user:password``.
    """

    def __init__(self, values: Mapping[str, str], users: Iterable[str] = ()) -> None:
        plain = {value: _described(value, source) for value, source in sorted(values.items()) if value}
        self._needles = [(needle, words) for value, words in plain.items() for needle in byte_forms(value)]
        joined = [(f"{user}:{value}", words) for value, words in plain.items() for user in users]
        self._forms = sorted(
            {
                (form, words)
                for value, words in (*plain.items(), *joined)
                for form in encoded_forms(value)
                if len(form) >= _SHORT
            }
        )

    def find_in_text(self, data: bytes) -> str:
        """What is known of the first value found in a small text, however it is encoded; empty for none."""
        if not self._needles:
            return ""
        for decoded in _decodings(data):
            for needle, words in self._needles:
                if _has(decoded, needle):
                    return words
        return ""

    def find_in_body(self, body: Body) -> str:
        """What is known of the first value found in a body, in bounded memory; empty for none."""
        tail = b""
        for piece in body.chunks() if self._forms else ():
            window = tail + piece
            for form, words in self._forms:
                if form in window:
                    return words
            tail = window[-_OVERLAP:]
        return ""


def _described(value: str, source: str) -> str:
    """A secret for messages."""
    return f"a secret of {len(value)} characters{f' ({source})' if source else ''}"


def _has(data: bytes, needle: bytes) -> bool:
    if len(needle) >= _SHORT:
        return needle in data
    return re.search(rb"(?<![A-Za-z0-9])" + re.escape(needle) + rb"(?![A-Za-z0-9])", data) is not None


def byte_forms(value: str) -> set[bytes]:
    """A value as bytes: UTF-8, Latin-1 where it has one, and what is left when one was taken for the other."""
    out = {value.encode("utf-8", "surrogatepass")}
    try:
        out.add(value.encode("latin-1"))
    except UnicodeEncodeError:
        return out
    try:
        out.add(value.encode("latin-1").decode().encode())
    except UnicodeDecodeError:
        return out
    return out


def encoded_forms(value: str) -> set[bytes]:
    """The spellings of a value that a large body is searched for."""
    out: set[bytes] = set()
    for raw in byte_forms(value):
        out |= {
            raw,
            *(urllib.parse.quote(raw, safe=safe).encode() for safe in ("", "/")),
            urllib.parse.quote_plus(raw).encode(),
        }
        for text in (base64.b64encode(raw), base64.urlsafe_b64encode(raw)):
            out.add(text.rstrip(b"="))
    for is_ascii in (True, False):
        escaped = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        out |= {form.encode("utf-8", "surrogatepass") for form in (escaped, escaped.replace("/", "\\/"))}
    return out


def _decodings(data: bytes) -> Iterator[bytes]:
    """The data, and what it becomes when any decoding that applies is undone, a few times over."""
    seen = {data}
    fresh = [data]
    for _ in range(_DEPTH):
        yield from fresh
        fresh = [one for item in fresh for one in _decoded_once(item) if one not in seen]
        seen.update(fresh)
    yield from fresh


def _decoded_once(data: bytes) -> list[bytes]:
    out: list[bytes] = []
    if b"%" in data or b"+" in data:
        out += [urllib.parse.unquote_to_bytes(data), urllib.parse.unquote_to_bytes(data.replace(b"+", b" "))]
    if b"\\" in data:
        text = _JSON_ESCAPE.sub(_unescape, data.decode("utf-8", "surrogateescape"))
        out.append(text.encode("utf-8", "replace"))
    words = b"\n".join(_from_base64(word) for word in _BASE64_WORD.findall(data))
    return [one for one in (*out, words) if one]


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2])


def _from_base64(word: bytes) -> bytes:
    usable = word.replace(b"-", b"+").replace(b"_", b"/")
    usable = usable[: len(usable) - (len(usable) % 4 == 1)]
    try:
        return base64.b64decode(usable + b"=" * (-len(usable) % 4))
    except (binascii.Error, ValueError):
        return b""
