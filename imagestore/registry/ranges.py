"""What each answer to a Range request means (RFC 9110 section 14, distribution specification "Pulling blobs").

Range support is optional for a registry, so every answer has a defined meaning here.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.oci import media_types
from imagestore.registry.transport.messages import parse_length

if TYPE_CHECKING:
    import httpx

_CONTENT_RANGE: Final = re.compile(r"bytes +([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ContentRange:
    """First and last byte (inclusive) of a partial answer, and the whole size; None when the server doesn't say."""

    first: int
    last: int
    total: int | None


def parse_content_range(text: str) -> ContentRange | None:
    """Read a Content-Range field; None when it is missing or makes no sense.

    >>> parse_content_range("bytes 5-9/10")
    ContentRange(first=5, last=9, total=10)
    """
    found = _CONTENT_RANGE.fullmatch(text.strip())
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    total = None if found[3] == "*" else int(found[3])
    if last < first or (total is not None and last >= total):
        return None
    return ContentRange(first, last, total)


class Verdict(enum.Enum):
    """What to do with an answer to a blob request."""

    WHOLE = "the body is the blob from its first byte"
    PART = "the body goes on where we stopped"
    RESTART = "ask again without Range"
    WRONG_SIZE = "this host has another size than the descriptor says"
    REFUSED = "an error"


def range_field(start: int, end: int, size: int) -> str:
    """Value of the Range field for bytes from ``start`` up to before ``end``; empty when that is the whole blob.

    >>> range_field(5, 10, 10), range_field(5, 8, 10), range_field(0, 10, 10)
    ('bytes=5-', 'bytes=5-7', '')
    """
    if end >= size:
        return f"bytes={start}-" if start else ""
    return f"bytes={start}-{end - 1}"


def judge(status: int, headers: httpx.Headers, *, offset: int, size: int, has_range: bool) -> Verdict:
    """Decide about an answer."""
    if status == 200:
        length = parse_length(headers.get("Content-Length", ""))
        return Verdict.WHOLE if length in (None, size) else Verdict.WRONG_SIZE
    if not has_range:
        return Verdict.REFUSED
    if status == 206:
        if media_types.bare(headers.get("Content-Type", "")) == "multipart/byteranges":
            return Verdict.RESTART
        part = parse_content_range(headers.get("Content-Range", ""))
        if part is None or part.first != offset or part.last >= size or part.total not in (None, size):
            return Verdict.RESTART
        length = parse_length(headers.get("Content-Length", ""))
        return Verdict.PART if length in (None, part.last + 1 - part.first) else Verdict.RESTART
    # 304 and 412 answer conditions that we don't send; 416: our offset isn't the server's; 501: it has no ranges.
    return Verdict.RESTART if status in {304, 412, 416, 501} else Verdict.REFUSED
