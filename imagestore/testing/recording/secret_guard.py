"""The guard: nothing is written in which a secret can still be seen.

Every value that was replaced somewhere, every value that the user named, and every credential that a request brought
must not occur in the tape's values, in its text, or in a body: as it is, percent-encoded, escaped as JSON, or in
base64. Encodings on top of each other are not undone. Besides, text must not hold what says itself that it is a secret:
a JSON web token, a private key, a key of a well-known service, a credential header.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
import urllib.parse
from typing import TYPE_CHECKING, Final

from imagestore.errors import Category, ImageStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
_HEX_PAIR: Final = re.compile("%[0-9A-F]{2}")
# Go's JSON writer has these as escapes.
_GO_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


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
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        described = {
            value: f"a secret of {len(value)} characters{f' ({source})' if source else ''}"
            for value, source in sorted(values.items())
            if value
        }
        self._forms = sorted({(form, words) for value, words in described.items() for form in _forms(value)})

    def find_in_text(self, data: bytes) -> str:
        """A description of the first value found in a text; empty for none."""
        return next((words for form, words in self._forms if _has(data, form)), "")

    def find_in_body(self, body: Body) -> str:
        """A description of the first value found in a body, in bounded memory; empty for none."""
        long = [(form, words) for form, words in self._forms if len(form) >= _SHORT]
        tail = b""
        for piece in body.chunks() if long else ():
            window = tail + piece
            for form, words in long:
                if form in window:
                    return words
            tail = window[-_OVERLAP:]
        return ""


def _has(data: bytes, form: bytes) -> bool:
    if len(form) >= _SHORT:
        return form in data
    return re.search(rb"(?<![A-Za-z0-9])" + re.escape(form) + rb"(?![A-Za-z0-9])", data) is not None


def _byte_forms(value: str) -> set[bytes]:
    """A value as bytes: UTF-8, Latin-1 if it has such a form, and UTF-8 if it is UTF-8 that was read as Latin-1."""
    out = {value.encode("utf-8", "surrogatepass")}
    with contextlib.suppress(UnicodeError):
        out.add(value.encode("latin-1"))
        out.add(value.encode("latin-1").decode().encode())
    return out


def _forms(value: str) -> set[bytes]:
    """The spellings of a value: as it is, percent-encoded, in base64 by itself or inside other text, and in JSON."""
    out: set[bytes] = set()
    for raw in _byte_forms(value):
        out.add(raw)
        for text in (urllib.parse.quote(raw, safe=""), urllib.parse.quote(raw), urllib.parse.quote_plus(raw)):
            out |= {text.encode(), _HEX_PAIR.sub(lambda found: found[0].lower(), text).encode()}
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            out.add(encode(raw).rstrip(b"="))
            # Inside other text: three bytes are four characters, so there are three forms, without the ends.
            for before in range(3):
                first, last = -(-before * 8 // 6), (before + len(raw)) * 8 // 6
                inside = encode(bytes(before) + raw)[first:last]
                out |= {inside} if len(inside) >= _SHORT else set()
    for is_ascii in (True, False):
        escaped = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        for form in (escaped, escaped.replace("/", "\\/"), escaped.translate(_GO_ESCAPES)):
            out.add(form.encode("utf-8", "surrogatepass"))
    return out


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
