"""The stream that a pull answers with: JSON objects, one behind the other.

Rules (Docker Engine API): objects are separated by CRLF, LF or nothing. A pull went well when the stream ends cleanly
and no object had ``errorDetail`` or its older twin ``error``; ``errorDetail.code`` is the status that the registry
answered with. A cut object is a failure, like anything that is no object. Sizes are bounded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import ImageServiceError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: One object; real ones have some hundred bytes.
MAX_OBJECT_BYTES: Final = 256 * 1024
_STATUSES: Final = range(400, 600)
_BLANK: Final = b" \t\r\n"
_OPEN, _CLOSE, _QUOTE, _ESCAPE = b'{}"\\'


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


class ProgressReader:
    """Cuts a stream into objects, however its chunks fall.

    Args:
        what: names the stream in errors.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._object = bytearray()
        self._depth = 0
        self._is_text = self._is_escaped = False

    def feed(self, chunk: bytes) -> Iterator[Progress]:
        """Take in what came; give the objects that are complete.

        Raises:
            ImageServiceError: it is no stream of objects.
        """
        for byte in chunk:
            if self._depth == 0:
                if byte in _BLANK:
                    continue
                if byte != _OPEN:
                    raise ImageServiceError(f"{self._what}: malformed progress: expected an object")
            self._object.append(byte)
            if len(self._object) > MAX_OBJECT_BYTES:
                raise ImageServiceError(f"{self._what}: malformed progress: an object is too large")
            self._count(byte)
            if self._depth == 0:
                yield self._parsed()

    def finish(self) -> None:
        """The stream has ended.

        Raises:
            ServiceUnavailableError: in the middle of an object.
        """
        if self._depth:
            raise ServiceUnavailableError(f"{self._what}: the progress ended in the middle of an object")

    def _count(self, byte: int) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif self._is_text:
            self._is_escaped = byte == _ESCAPE
            self._is_text = byte != _QUOTE
        elif byte == _QUOTE:
            self._is_text = True
        elif byte == _OPEN:
            self._depth += 1
        elif byte == _CLOSE:
            self._depth -= 1

    def _parsed(self) -> Progress:
        data, self._object = bytes(self._object), bytearray()
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ImageServiceError(f"{self._what}: malformed progress: is no JSON") from error
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
