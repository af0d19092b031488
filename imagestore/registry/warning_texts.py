"""What a registry wants its users to read: ``Warning`` header fields (OCI distribution specification 1.1, "Warnings").

Only code 299 with the agent ``-`` is meant for people; the text is shown and never acted upon.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imagestore.registry.errors_body import escape

if TYPE_CHECKING:
    import httpx

# What the specification asks servers to stay below, all warnings of an answer together.
_MAX_BYTES: Final = 4096
_WARNING: Final = re.compile(r'(?:^|,)[ \t]*299 - "((?:[^"\\]|\\.)*)"')


def warning_texts(headers: httpx.Headers) -> tuple[str, ...]:
    r"""The texts, escaped for display.

    >>> import httpx
    >>> warning_texts(httpx.Headers({"Warning": '299 - "moves to \\"b\\" soon", 110 - "stale"'}))
    ('moves to "b" soon',)
    """
    found: list[str] = []
    left = _MAX_BYTES
    for value in headers.get_list("Warning"):
        found.extend(escape(re.sub(r"\\(.)", r"\1", match[1])) for match in _WARNING.finditer(value[:left]))
        left = max(0, left - len(value))
    return tuple(found)
