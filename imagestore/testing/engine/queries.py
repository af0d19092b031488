"""Query parameters: which values may be written and compared, and which are somebody's secret.

Only values of known-plain names count; any other value (a signature, an account, an expiry time) is replaced when
recording and ignored when a request is compared with what was recorded.
"""

from __future__ import annotations

import urllib.parse
from typing import Final

#: Parameters whose value is kept (distribution-spec 1.1, the token and OAuth2 documents, mirrors' ``ns``).
PLAIN_PARAMETERS: Final = frozenset(
    {
        "access_type",
        "artifacttype",
        "client_id",
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


def comparable(query: str) -> tuple[tuple[str, str], ...]:
    """A query or form for comparing: decoded, sorted, values of other than plain parameters left out.

    >>> comparable("sig=abc&n=5") == comparable("n=5&sig=xyz")
    True
    """
    pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
    return tuple(sorted((name, value if name.lower() in PLAIN_PARAMETERS else "") for name, value in pairs))


def shown(query: str) -> str:
    """A query for messages: with a question mark, and dots in place of values that may be secret.

    >>> shown("sig=abc&n=5")
    '?sig=...&n=5'
    """
    parts = []
    for pair in query.split("&") if query else ():
        name, equals, value = pair.partition("=")
        is_plain = urllib.parse.unquote_plus(name).lower() in PLAIN_PARAMETERS or value.startswith("tape-")
        parts.append(f"{name}{equals}{value if is_plain else '...'}" if equals else name)
    return "?" + "&".join(parts) if parts else ""
