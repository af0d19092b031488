"""A pull by a Docker Engine, and the stream of progress in its answer.

Rules (Docker Engine API): the stream has JSON objects, separated by CRLF, LF or nothing. A pull succeeds if the stream
ends cleanly and no object has ``errorDetail`` or its older twin ``error``; ``errorDetail.code`` is the registry's HTTP
status. A truncated object, or anything else than an object, is a failure. Lines are bounded. Bytes that don't complete
an object are no progress: without one for too long, the stream has stalled.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import DeadlineExceededError, ImageServiceError, ServiceUnavailableError
from imagestore.events import PartAdvanced, ignore
from imagestore.node.docker import api

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imagestore.events import Observer
    from imagestore.node.docker.http import EngineConnection
    from imagestore.oci import Reference
    from imagestore.platforms import Platform
    from imagestore.registry import AuthConfig
    from imagestore.util.cancel import CancelToken
    from imagestore.util.durations import Duration

#: Of one line, usually one object; real ones have a few hundred bytes.
MAX_LINE_BYTES: Final = 256 * 1024
_STATUSES: Final = range(400, 600)
_BLANK: Final = " \t\r\n"
_DECODER: Final = json.JSONDecoder()


def pull(
    connection: EngineConnection,
    reference: Reference,
    platform: Platform | None,
    *,
    stall_limit: Duration,
    auth: AuthConfig | None = None,
    observer: Observer | None = None,
    cancel: CancelToken | None = None,
) -> None:
    """Pull an image; returns when the stream has ended successfully.

    Args:
        connection: to the engine.
        reference: complete; a digest takes precedence over a tag.
        platform: selects from an index; None leaves the selection to the engine.
        stall_limit: how long the pull may make no progress.
        auth: credentials for the registry.
        observer: receives progress.
        cancel: ends the call; the engine then stops the pull.

    Raises:
        ReferenceNotFoundError, AuthenticationError, AccessDeniedError, RateLimitedError, RegistryUnavailableError: the
            registry's error, if the engine passes its status on.
        ImageServiceError: the engine failed, or its stream is malformed.
        ServiceUnavailableError: the engine can't be reached, or closed the connection.
        DeadlineExceededError: the pull stalled, or the token's deadline passed.
        OperationCancelledError: the token ended it.
    """
    what = str(reference)
    query = {"fromImage": reference.name, "tag": str(reference.digest) if reference.digest else reference.tag}
    if platform is not None:
        query["platform"] = platform_text(platform)
    with connection.stream(
        "/images/create",
        what,
        query=query,
        headers=api.registry_auth(auth, reference.host),
        stall_seconds=stall_limit.seconds,
        cancel=cancel,
    ) as chunks:
        for step in read_progress(chunks, what, stall_seconds=stall_limit.seconds):
            if cancel is not None:
                cancel.check()
            if step.error:
                raise api.stream_failure(step.code, f"{what}: {step.error}")
            (observer or ignore)(PartAdvanced(step.part, step.status, step.current, step.total))


def platform_text(platform: Platform) -> str:
    """``os[/arch[/variant]]``, which every engine reads; without the Windows build.

    >>> from imagestore import platforms
    >>> platform_text(platforms.parse("linux/arm64/v8"))
    'linux/arm64/v8'
    """
    parts = (platform.os, platform.architecture, platform.variant)
    return "/".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Progress:
    """One object.

    Attributes:
        part: short id of a layer, or empty.
        status: a text.
        current, total: bytes; None if absent.
        error: text of a failure, or empty.
        code: HTTP status of the failure; 0 if absent.
    """

    part: str = ""
    status: str = ""
    current: int | None = None
    total: int | None = None
    error: str = ""
    code: int = 0


def read_progress(chunks: Iterable[bytes], what: str, *, stall_seconds: float = math.inf) -> Iterator[Progress]:
    """The objects of a stream; an object may span chunks.

    Raises:
        DeadlineExceededError: no object came for ``stall_seconds``.
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
            raise ImageServiceError(f"{what}: malformed progress: invalid JSON") from error
        if not isinstance(value, dict):
            raise ImageServiceError(f"{what}: malformed progress: expected an object")
        yield _progress(value)
        text = text[end:].lstrip(_BLANK)


def _progress(value: dict[str, Any]) -> Progress:
    failed = "errorDetail" in value or "error" in value
    text = _text(api.member(value, "errorDetail", "message")) or _text(value.get("error"))
    code = _number(api.member(value, "errorDetail", "code")) or 0
    return Progress(
        part=_text(value.get("id")),
        status=_text(value.get("status")),
        current=_number(api.member(value, "progressDetail", "current")),
        total=_number(api.member(value, "progressDetail", "total")),
        error=text or ("the engine reports a failure" if failed else ""),
        code=code if code in _STATUSES else 0,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
