"""Which request the code at hand works for; log lines carry it, also those of worker threads."""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Metadata key by which a caller names its request; the answer's trailing metadata repeats it.
REQUEST_ID_KEY: Final = "x-request-id"
REQUEST_ID: Final[ContextVar[str]] = ContextVar("imagestore_request_id", default="")
# What can't break a log line or a header.
_GRAMMAR: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def request_id(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The caller's name for its request, or a new one when it gave none that can be used.

    Args:
        metadata: what came with the request.

    >>> request_id([("x-request-id", "pod-7/pull")])
    'pod-7/pull'
    """
    for key, value in metadata or ():
        if key == REQUEST_ID_KEY and isinstance(value, str) and _GRAMMAR.fullmatch(value):
            return value
    return uuid.uuid4().hex[:16]
