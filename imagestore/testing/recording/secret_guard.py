"""The guard: nothing is written in which a secret can still be seen.

Two searches. Every value that was replaced somewhere (and every value that the user named, and every credential that a
request brought) must not occur anywhere, however it is spelled, in the tape's values, in its text, or in a body. And
text must not hold what looks like a secret that nobody classified: a JSON web token, a private key, a key of a
well-known service, a credential header, a long random path part.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imagestore.errors import Category, ImageStoreError
from imagestore.testing.recording.secrets import parts_of_basic

if TYPE_CHECKING:
    from imagestore.testing.images.bodies import Body
    from imagestore.testing.recording.search import Search

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


def check_text(data: bytes, place: str, search: Search | None = None) -> None:
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


def check_body(body: Body, place: str, search: Search) -> None:
    """Search the bytes of a body for known values, in bounded memory.

    Raises:
        SecretLeakError: something was found.
    """
    known = search.find_in_body(body)
    if known:
        raise SecretLeakError(place, known)
