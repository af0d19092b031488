"""Small answers in the words of the distribution-spec: error documents, JSON, and parts of a body for a Range.

Range rules: RFC 9110 section 14. One range is served with 206; a list of ranges, another unit or nonsense is ignored
and the whole body sent, as the RFC allows; an unsatisfiable range gets 416 with the true length.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Final

from imagestore.testing.engine.exchange import Fields, Reply
from imagestore.testing.images.bodies import BytesBody

_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_API: Final = {"Docker-Distribution-Api-Version": "registry/2.0"}


def error(status: int, code: str, message: str, *, fields: dict[str, str] | None = None, kind: str = "other") -> Reply:
    """An error document: ``{"errors": [{"code", "message"}]}``."""
    body = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
    return Reply(
        status, Fields.of({"Content-Type": "application/json", **_API}, fields or {}), BytesBody(body), kind=kind
    )


def json_reply(value: object, *, fields: dict[str, str] | None = None, kind: str = "other") -> Reply:
    """A JSON document."""
    headers = {"Content-Type": "application/json", **_API, **(fields or {})}
    return Reply(200, Fields.of(headers), BytesBody(json.dumps(value).encode()), kind=kind)


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """Start and stop (exclusive) that a Range asks for; None when it should be ignored.

    An unsatisfiable range gives an empty one, ``(size, size)``.

    >>> parse_range("bytes=2-3", 10)
    (2, 4)
    >>> parse_range("bytes=-3", 10)
    (7, 10)
    """
    found = _RANGE.fullmatch(text)
    if found is None or (not found[1] and not found[2]):
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size
    start = int(found[1])
    stop = int(found[2]) + 1 if found[2] else size
    if stop <= start and found[2]:
        return None
    return (start, min(stop, size)) if start < size else (size, size)


def apply_range(reply: Reply, range_text: str) -> Reply:
    """Turn a 200 into the 206 or 416 that the Range asks for; other replies pass."""
    if reply.status != 200 or not range_text:
        return reply
    size = reply.body.size
    part = parse_range(range_text, size)
    if part is None:
        return reply
    start, stop = part
    if start >= stop:
        refused = error(416, "RANGE_INVALID", "the range is not in the blob", kind=reply.kind)
        return replace(refused, fields=refused.fields.put("Content-Range", f"bytes */{size}"), digest=reply.digest)
    fields = reply.fields.put("Content-Range", f"bytes {start}-{stop - 1}/{size}")
    return replace(reply, status=206, fields=fields, start=start, stop=stop)
