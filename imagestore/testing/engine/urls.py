"""What a request's address asks for: its path (distribution-spec 1.1, the table of endpoints), and its query.

Only the values of plain parameters are written and compared; any other value (a signature, an account, an expiry time)
is replaced when recording, and ignored when a request is compared with a recorded one.
"""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from typing import Final

from imagestore.errors import InvalidDigestError, InvalidInputError
from imagestore.oci import Digest

_NAME: Final = r"(?P<name>[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)"
_FORMS: Final = (
    ("manifest", re.compile(rf"/v2/{_NAME}/manifests/(?P<ref>[!-.0-~]{{1,300}})")),
    ("upload", re.compile(rf"/v2/{_NAME}/blobs/uploads/(?P<ref>[!-.0-~]{{0,300}})")),
    ("blob", re.compile(rf"/v2/{_NAME}/blobs/(?P<ref>[!-.0-~]{{1,300}})")),
    ("tags", re.compile(rf"/v2/{_NAME}/tags/(?P<ref>list)")),
    ("referrers", re.compile(rf"/v2/{_NAME}/referrers/(?P<ref>[!-.0-~]{{1,300}})")),
)
#: What an answer can be: the kinds of paths, what a token service gives, and what nothing answers.
KINDS: Final = frozenset(
    {"ping", "token", "catalog", "manifest", "blob", "upload", "tags", "referrers", "other", "unexpected"}
)
# Methods of requests (RFC 9110 section 9, RFC 5789).
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})
# Longest path that is looked at; a repository name has at most 255 characters.
_MAX_PATH: Final = 1024
#: Parameters whose value is kept (distribution-spec 1.1, the token and OAuth2 documents, mirrors' ``ns``).
PLAIN_PARAMETERS: Final = frozenset(
    {
        *("access_type", "artifacttype", "digest", "from", "grant_type", "last", "mount", "n", "ns"),
        *("offline_token", "scope", "service", "tag"),
    }
)
_EMPTY_PARAMETER: Final = re.compile(r"[A-Za-z_-]{1,24}=")
_PLACEHOLDER: Final = re.compile(r"tape-[a-z]+-@?[0-9]+@?")


@dataclass(frozen=True, slots=True)
class ApiPath:
    """What a path asks for.

    Attributes:
        kind: one of KINDS.
        repository: path of the repository; empty when there is none.
        reference: tag, digest or upload id as written.

    >>> parse_path("/v2/library/python/manifests/3").reference
    '3'
    """

    kind: str
    repository: str = ""
    reference: str = ""

    @property
    def digest(self) -> Digest | None:
        """The reference as a digest, or None when it isn't one."""
        try:
            return Digest.parse(self.reference)
        except InvalidDigestError:
            return None


def check_names(*, kind: str, method: str) -> None:
    """Refuse a kind or method that no request can have: a misspelled one would fit nothing, without notice.

    Raises:
        InvalidInputError: one is unknown; empty ones fit any.
    """
    for what, name, known in (("kind", kind, KINDS), ("method", method, _METHODS)):
        if name and name not in known:
            raise InvalidInputError(f"{what} {name!r}: expected one of {', '.join(sorted(known))}")


def parse_path(path: str) -> ApiPath:
    """Classify a path; never fails."""
    if path in ("/v2/", "/v2"):
        return ApiPath("ping")
    if path == "/v2/_catalog":
        return ApiPath("catalog")
    if len(path) > _MAX_PATH:
        return ApiPath("other")
    for kind, form in _FORMS:
        found = form.fullmatch(path)
        if found is not None:
            return ApiPath(kind, found["name"], found["ref"])
    return ApiPath("other")


def comparable(query: str) -> tuple[tuple[str, str], ...]:
    """A query or form for comparing: decoded, sorted, values of other than plain parameters left out.

    >>> comparable("sig=abc&n=5") == comparable("n=5&sig=xyz")
    True
    """
    return tuple(sorted(_comparable(pair) for pair in query.split("&") if pair))


def _comparable(pair: str) -> tuple[str, str]:
    raw_name, equals, raw_value = pair.partition("=")
    name = urllib.parse.unquote_plus(raw_name)
    if name.lower() in PLAIN_PARAMETERS:
        return name, urllib.parse.unquote_plus(raw_value)
    # Without a value the name itself may be the secret, and is replaced when it is recorded.
    return (name, "") if equals and (raw_value.strip("=") or is_empty_parameter(pair)) else ("", "")


def is_empty_parameter(pair: str) -> bool:
    """Whether this is a parameter with an ordinary name and an empty value.

    >>> is_empty_parameter("flag="), is_empty_parameter("c2VjcmV0MQ==")
    (True, False)
    """
    return _EMPTY_PARAMETER.fullmatch(pair) is not None


def is_placeholder(value: str) -> bool:
    """Whether a value was replaced already, when a tape was recorded.

    >>> is_placeholder("tape-signature-1"), is_placeholder("tape-000")
    (True, False)
    """
    return _PLACEHOLDER.fullmatch(value) is not None


def shown(query: str) -> str:
    """A query for messages: with a question mark, and dots in place of values that may be secret.

    >>> shown("sig=abc&n=5")
    '?sig=...&n=5'
    """
    parts = []
    for pair in query.split("&") if query else ():
        name, equals, value = pair.partition("=")
        is_plain = urllib.parse.unquote_plus(name).lower() in PLAIN_PARAMETERS or is_placeholder(value)
        is_shown = is_plain or not pair or is_placeholder(pair)
        parts.append(pair if is_shown else f"{name}=..." if equals and value.strip("=") else "...")
    return "?" + "&".join(parts) if parts else ""
