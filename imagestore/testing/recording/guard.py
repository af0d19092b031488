"""The guard: nothing is written in which a secret can still be seen.

Two searches. Every value that was replaced somewhere (and every value that the user named) must not occur anywhere,
in plain, percent-encoded or base64 form, in the tape or in a body. And text must not hold what looks like a secret
that nobody classified: a JSON web token, a private key, a key of a well-known service, a credential header, a long
random path part.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from imagestore.errors import Category, ImageStoreError
from imagestore.testing.recording.secrets import parts_of_basic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.testing.images.bodies import Body

_SUSPICIOUS: Final = (
    ("a JSON web token", re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----")),
    ("an access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a personal access token", re.compile(r"\b(?:gh[pousr]_\w{30,}|glpat-[\w-]{20}|dckr_pat_[\w-]{20})", re.ASCII)),
    ("a bearer credential", re.compile(r"(?i)\bbearer +(?!tape-)(?!realm=)[A-Za-z0-9._~+/-]{16,}")),
    ("user information in an address", re.compile(r"[a-z]+://[^/\s\"'@]+:[^/\s\"'@]+@")),
)  # fmt: skip
_BASIC: Final = re.compile(r"(?i)\bbasic +([A-Za-z0-9+/]{6,}={0,2})")
_RANDOM_PART: Final = re.compile(r"(?<=/)[A-Za-z0-9_-]{32,}(?=[/?\"\s]|$)")
_HEX: Final = re.compile(r"[0-9a-f]{32,128}")
# Bits per character; words and names stay below, random base64 is above.
_RANDOM_BITS: Final = 4.0
# The search looks at a body in pieces with this much overlap; no secret is longer.
_OVERLAP: Final = 16 << 10


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
            hint="classify it (secret_names=, plain_names=), or record without the request that brings it",
        )
        self.place = place
        self.reason = reason


def check_text(text: str, place: str, secrets: Iterable[str]) -> None:
    """Search a text for known and for suspicious values.

    Raises:
        SecretLeakError: something was found.
    """
    for secret in secrets:
        if secret in text:
            raise SecretLeakError(place, f"a secret of {len(secret)} characters")
    for reason, form in _SUSPICIOUS:
        if form.search(text):
            raise SecretLeakError(place, reason)
    if any(parts_of_basic(found[1]) for found in _BASIC.finditer(text)):
        raise SecretLeakError(place, "a basic credential")


def check_path(path: str, place: str) -> None:
    """Search an address's path for a long random part; digests are fine.

    Raises:
        SecretLeakError: something was found.
    """
    for found in _RANDOM_PART.finditer(path):
        part = found.group()
        if not _HEX.fullmatch(part) and entropy(part) >= _RANDOM_BITS and any(one.isdigit() for one in part):
            raise SecretLeakError(place, f"an unclassified random path part of {len(part)} characters")


def check_body(body: Body, place: str, secrets: Iterable[str]) -> None:
    """Search the bytes of a body for known values, in bounded memory.

    Raises:
        SecretLeakError: something was found.
    """
    wanted = [secret.encode() for secret in secrets]
    tail = b""
    for piece in body.chunks():
        window = tail + piece
        for secret in wanted:
            if secret in window:
                raise SecretLeakError(place, f"a secret of {len(secret)} characters")
        tail = window[-_OVERLAP:]


def entropy(text: str) -> float:
    """Shannon entropy in bits per character.

    >>> entropy("aaaa")
    0.0
    """
    counts = {character: text.count(character) for character in set(text)}
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) + 0.0
