"""What all gRPC services share: errors as status codes, and methods that aren't served.

Status codes are containerd's words one to one (its errdefs package), everything else is UNKNOWN. A method that peers
have and this server hasn't is answered with what is missing, not with a bare code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from imagestore.errors import Category, ImageStoreError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

CODES: Final[Mapping[Category, grpc.StatusCode]] = {
    Category.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Category.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Category.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Category.FAILED_PRECONDITION: grpc.StatusCode.FAILED_PRECONDITION,
    Category.OUT_OF_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    Category.NOT_IMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    Category.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Category.RESOURCE_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Category.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Category.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Category.ABORTED: grpc.StatusCode.ABORTED,
    Category.DATA_LOSS: grpc.StatusCode.DATA_LOSS,
    Category.CANCELLED: grpc.StatusCode.CANCELLED,
    Category.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    Category.INTERNAL: grpc.StatusCode.INTERNAL,
}


def code_of(error: ImageStoreError) -> grpc.StatusCode:
    """The status code of an error's category."""
    return CODES[error.category]


#: Percent-encoded bytes of a status text. It travels in a header, and all of them together may have 8 KiB.
MOST_TEXT_BYTES: Final = 4096


def text_of(error: ImageStoreError, *, ends_in_class: bool = False) -> str:
    """The message with its hint, one line, cut to what a status may carry.

    Args:
        error: what failed.
        ends_in_class: add a colon and the words of the error's class. containerd's clients cut them off, and put their
            own error of that class in their place (containerd, errdefs).
    """
    ending = f": {error.category.value}" if ends_in_class else ""
    text = f"{error} ({error.hint})" if error.hint else str(error)
    most = MOST_TEXT_BYTES - len(ending)
    if len(text) <= most and _encoded_bytes(text) <= most:
        return text + ending
    shown = text[:most]
    while _encoded_bytes(shown) > most - 3:
        shown = shown[: len(shown) * 9 // 10]
    return f"{shown}...{ending}"


def _encoded_bytes(text: str) -> int:
    """How long a text is as gRPC sends it: printable ASCII as it is, every other byte, and "%", as three characters."""
    return sum(1 if 0x20 <= byte < 0x7F and byte != 0x25 else 3 for byte in text.encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class AbsentMethod(grpc.RpcMethodHandler):  # type: ignore[type-arg]  # generic in the types only
    """A handler that refuses, known as such to interceptors.

    Attributes:
        stream_stream: the refusal; the other attributes are those of every handler.
    """

    stream_stream: Callable[[Any, Any], Any]
    request_streaming: bool = True
    response_streaming: bool = True
    request_deserializer: None = None
    response_serializer: None = None
    unary_unary: None = None
    unary_stream: None = None
    stream_unary: None = None


class AbsentMethods(grpc.GenericRpcHandler):
    """Answers every call below a prefix that has no other handler.

    Args:
        prefix: how the methods begin, ``/package.``.
        missing: says of a method, named ``/package.Service/Method``, what isn't here.
        ends_in_class: as for ``text_of``.
    """

    def __init__(self, prefix: str, missing: Callable[[str], str], *, ends_in_class: bool = False) -> None:
        self._prefix = prefix
        self._missing = missing
        self._ends_in_class = ends_in_class

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> AbsentMethod | None:
        """A handler that refuses; None for calls elsewhere."""
        method = str(handler_call_details.method)
        if not method.startswith(self._prefix):
            return None

        async def _refusing(_: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
            error = UnsupportedError(f"{method.lstrip('/')} is not served here: {self._missing(method)}")
            await context.abort(code_of(error), text_of(error, ends_in_class=self._ends_in_class))

        return AbsentMethod(_refusing)
