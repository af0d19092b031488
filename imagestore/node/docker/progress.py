"""The stream that a pull answers with: JSON objects, one behind the other.

Rules (Docker Engine API): objects are separated by CRLF, LF or nothing. A pull went well when the stream ends cleanly
and no object had ``errorDetail`` or its older twin ``error``; ``errorDetail.code`` is the status that the registry
answered with. A cut object is a failure, like anything that is no object. Lines are bounded. Bytes that make up no
object are no progress: a stream that brings nothing else for too long has stalled.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import DeadlineExceededError, ImageServiceError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Of one line, usually one object; real ones have some hundred bytes.
MAX_LINE_BYTES: Final = 256 * 1024
_STATUSES: Final = range(400, 600)
_BLANK: Final = " \t\r\n"
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Progress:
    """One object.

    Attributes:
        part: short id of a layer, or empty.
        status: in words.
        current, total: bytes; None where they aren't told.
        error: text of a failure, or empty.
        code: of the failure, a status of HTTP; 0 where it isn't told.
    """

    part: str = ""
    status: str = ""
    current: int | None = None
    total: int | None = None
    error: str = ""
    code: int = 0


def read(chunks: Iterable[bytes], what: str, *, stall_seconds: float = math.inf) -> Iterator[Progress]:
    """The objects of a stream, however its chunks fall.

    Args:
        chunks: as they come.
        what: names the stream in errors.
        stall_seconds: how long no object may come.

    Raises:
        DeadlineExceededError: none came for so long.
        ImageServiceError: it is no stream of objects.
        ServiceUnavailableError: it ends in the middle of an object.
    """
    rest = b""
    last = time.monotonic()
    for chunk in chunks:
        # No object has a line feed inside: engines write each on one line.
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            for each in _objects(line, what):
                yield each
                last = time.monotonic()
        if time.monotonic() - last > stall_seconds:
            raise DeadlineExceededError(f"{what}: no progress came for {stall_seconds:g} seconds")
        if len(rest) > MAX_LINE_BYTES:
            raise ImageServiceError(f"{what}: malformed progress: a line is too large")
    yield from _objects(rest, what, is_cut=True)


def _objects(line: bytes, what: str, *, is_cut: bool = False) -> Iterator[Progress]:
    text = line.decode("utf-8", "replace").strip(_BLANK)
    while text:
        try:
            value, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError) as error:
            if is_cut and text.startswith("{"):
                raise ServiceUnavailableError(f"{what}: the progress ended in the middle of an object") from error
            raise ImageServiceError(f"{what}: malformed progress: is no JSON") from error
        if not isinstance(value, dict):
            raise ImageServiceError(f"{what}: malformed progress: expected an object")
        yield _progress(value)
        text = text[end:].lstrip(_BLANK)


def _progress(value: dict[str, Any]) -> Progress:
    detail, numbers = value.get("errorDetail"), value.get("progressDetail")
    failed = "errorDetail" in value or "error" in value
    text = _text(detail.get("message")) if isinstance(detail, dict) else ""
    problem = text or _text(value.get("error")) or ("the engine reports a failure" if failed else "")
    code = (_number(detail.get("code")) if isinstance(detail, dict) else None) or 0
    inside = numbers if isinstance(numbers, dict) else {}
    return Progress(
        part=_text(value.get("id")),
        status=_text(value.get("status")),
        current=_number(inside.get("current")),
        total=_number(inside.get("total")),
        error=problem,
        code=code if code in _STATUSES else 0,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
