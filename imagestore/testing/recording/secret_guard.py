"""The guard: nothing is written in which a secret can still be seen.

Two searches. Every value that was replaced somewhere (and every value that the user named, and every credential that a
request brought) must not occur anywhere, however it is spelled, in the tape's values, in its text, or in a body. And
text must not hold what looks like an unclassified secret: a JSON web token, a private key, a key of a
well-known service, a credential header, a long random path part.

Known values are found in every spelling, in two ways. Small texts are decoded (percent-encoding, JSON escapes, base64)
and the plain value is looked for in each result. Large bodies are read once in pieces and searched for encoded forms.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
import re
import urllib.parse
from typing import TYPE_CHECKING, Final

from imagestore.errors import Category, ImageStoreError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from imagestore.testing.builders.bodies import Body


_SUSPICIOUS: Final = (
    (
        "a JSON web token",
        # From where its first part begins, and without a second try there: else long text takes quadratic time.
        re.compile(
            r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]*eyJ[A-Za-z0-9_-]{8})[A-Za-z0-9_-]++"
            r"\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}"
        ),
    ),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----")),
    ("an access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a personal access token", re.compile(r"\b(?:gh[pousr]_\w{30,}|glpat-[\w-]{20}|dckr_pat_[\w-]{20})", re.ASCII)),
    ("a bearer credential", re.compile(r"(?i)\bbearer +(?!tape-)(?!realm=)[A-Za-z0-9._~+/-]{16,}")),
    (
        "a credential in a form",
        re.compile(r"(?i)\b(?:access_token|refresh_token|id_token|password|api_key)=(?!tape-)[^&\s\"]{6,}"),
    ),
    ("user information in an address", re.compile(r"[a-z]://[^/\s\"'@:]*:[^/\s\"'@]+@")),
)
_SHOWN_NAME: Final = re.compile(r"[A-Za-z_.-]{1,40}")
_BASIC: Final = re.compile(r"(?i)\bbasic +([A-Za-z0-9+/]{6,}={0,2})")
# Shorter values are looked for as whole words, and not in large bodies, where they would be found by chance.
_SHORT: Final = 6
# The search looks at a body in pieces with this much overlap; no secret is longer.
_OVERLAP: Final = 16 << 10
_BASE64_WORD: Final = re.compile(rb"[A-Za-z0-9+/_-]{4,}")
_JSON_ESCAPE: Final = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
# How many decodings are tried on top of each other: JSON inside JSON, base64 of a percent-encoded value.
_DEPTH: Final = 3
_WORD: Final = re.compile(r"[A-Za-z0-9_+=~.-]{20,}")
_HEX: Final = re.compile(r"[0-9a-f]+|[0-9A-F]+")
# SHA-256, SHA-384 and SHA-512 in hex; anything else in hex counts as a token.
_DIGEST_LENGTHS: Final = frozenset({64, 96, 128})
# Bits per character; words and names stay below, random base64 is above.
_RANDOM_BITS: Final = 3.5
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class SecretLeakError(ImageStoreError):
    """A recording would have written a secret; nothing was written.

    Attributes:
        place: what would have held it.
        reason: what was seen, without the secret.
    """

    category = Category.FAILED_PRECONDITION

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"recording: {place} holds {reason}; nothing was written",
            hint="name it as plain if it is (--plain, plain_names=), or record without the request that brings it",
        )
        self.place = place
        self.reason = reason


def shown_name(name: str) -> str:
    """A member's, header's or parameter's name for messages; one that could itself be a secret isn't shown."""
    return name if _SHOWN_NAME.fullmatch(name) else "(not shown)"


def check_text(data: bytes, place: str, search: SecretSearch | None = None) -> None:
    """Search a text for known and for suspicious values.

    Raises:
        SecretLeakError: something was found.
    """
    known = search.find_in_text(data) if search is not None else ""
    if known:
        raise SecretLeakError(place, known)
    text = data.decode("utf-8", "replace")
    for reason, form in _SUSPICIOUS:
        if form.search(text):
            raise SecretLeakError(place, reason)
    if any(parts_of_basic(found[1]) for found in _BASIC.finditer(text)):
        raise SecretLeakError(place, "a basic credential")


class SecretSearch:
    """A search for some values.

    Args:
        values: secrets as they are, and where each was seen, for messages; empty where that isn't known.
        users: names that a secret may be joined to, as in ``user:password``.
    """

    def __init__(self, values: Mapping[str, str], users: Iterable[str] = ()) -> None:
        plain = {value: _described(value, source) for value, source in sorted(values.items()) if value}
        self._needles = [(needle, words) for value, words in plain.items() for needle in _byte_forms(value)]
        joined = [(f"{user}:{value}", words) for value, words in plain.items() for user in users]
        self._forms = sorted(
            {
                (form, words)
                for value, words in (*plain.items(), *joined)
                for form in _encoded_forms(value)
                if len(form) >= _SHORT
            }
        )

    def find_in_text(self, data: bytes) -> str:
        """A description of the first value found in a small text, however it is encoded; empty for none."""
        if not self._needles:
            return ""
        for decoded in _decodings(data):
            for needle, words in self._needles:
                if _has(decoded, needle):
                    return words
        return ""

    def find_in_body(self, body: Body) -> str:
        """A description of the first value found in a body, in bounded memory; empty for none."""
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


def _byte_forms(value: str) -> set[bytes]:
    """A value as bytes: UTF-8, Latin-1 if it has such a form, and UTF-8 if it is UTF-8 that was read as Latin-1."""
    out = {value.encode("utf-8", "surrogatepass")}
    with contextlib.suppress(UnicodeError):
        out.add(value.encode("latin-1"))
        out.add(value.encode("latin-1").decode().encode())
    return out


def _encoded_forms(value: str) -> set[bytes]:
    """The spellings of a value that a large body is searched for."""
    out: set[bytes] = set()
    for raw in _byte_forms(value):
        quoted = (urllib.parse.quote(raw, safe=""), urllib.parse.quote(raw), urllib.parse.quote_plus(raw))
        out |= {raw, *(text.encode() for text in quoted)}
        out |= {text.rstrip(b"=") for text in (base64.b64encode(raw), base64.urlsafe_b64encode(raw))}
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


def _basic_texts(value: str) -> list[str]:
    """A Basic value decoded as clients encode it: UTF-8 (RFC 7617), and Latin-1 before that."""
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return []
    try:
        return [raw.decode("latin-1"), raw.decode()]
    except UnicodeDecodeError:
        return [raw.decode("latin-1")]


def parts_of_basic(value: str) -> set[str]:
    """The secrets inside the value of a Basic credential: password, and user with password; empty when it is none."""
    out: set[str] = set()
    for text in _basic_texts(value):
        _, colon, password = text.partition(":")
        out |= {password, text} if colon and password else set()
    return out


def user_of_basic(value: str) -> str:
    """The user's name in a Basic credential, or empty."""
    texts = [text for text in _basic_texts(value) if ":" in text]
    return texts[-1].partition(":")[0] if texts else ""
