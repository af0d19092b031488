"""Query parameters: which values may be written and compared, and which are somebody's secret.

Only values of known-plain names count; any other value (a signature, an account, an expiry time) is replaced when
recording and ignored when a request is compared with what was recorded.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Final

#: Parameters whose value is kept (distribution-spec 1.1, the token and OAuth2 documents, mirrors' ``ns``).
PLAIN_PARAMETERS: Final = frozenset(
    {
        "access_type",
        "artifacttype",
        "digest",
        "from",
        "grant_type",
        "last",
        "mount",
        "n",
        "ns",
        "offline_token",
        "scope",
        "service",
        "tag",
    }
)

_EMPTY_PARAMETER: Final = re.compile(r"[A-Za-z_-]{1,24}=")
_PLACEHOLDER: Final = re.compile(r"tape-[a-z]+-@?[0-9]+@?")


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
