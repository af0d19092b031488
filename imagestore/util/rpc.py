"""Shared by gRPC servers and clients: errors as status codes (as in containerd's errdefs) and back, absent methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from imagestore.errors import (
    AlreadyExistsError,
    Category,
    DeadlineExceededError,
    ImageServiceError,
    ImageStoreError,
    IntegrityError,
    InvalidInputError,
    NotFoundError,
    OperationCancelledError,
    OutOfRangeError,
    PreconditionError,
    ServiceUnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

#: Limit of a message, both ways: containerd's, and that of every client of CRI. In bytes.
MESSAGE_BYTES: Final = 16 * 1024 * 1024
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


#: Limit of a status text in percent-encoded bytes: it is sent in a header, and all headers together may have 8 KiB.
MOST_TEXT_BYTES: Final = 4096


def text_of(error: ImageStoreError, *, ends_in_class: bool = False) -> str:
    """The message with its hint in one line, cut to the limit of a status text.

    With ``ends_in_class`` the text of the error's category follows, by which containerd's clients (errdefs) make their
    own error.
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
    """Length of a text as gRPC sends it: "%" and every byte that is not printable ASCII take three characters."""
    return sum(1 if 0x20 <= byte < 0x7F and byte != 0x25 else 3 for byte in text.encode("utf-8", "replace"))


#: Of a text from the other side, in characters.
_MOST_SHOWN: Final = 4096
_KINDS: Final[Mapping[grpc.StatusCode, Callable[[str], ImageStoreError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInputError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionError,
    grpc.StatusCode.OUT_OF_RANGE: OutOfRangeError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
    grpc.StatusCode.DATA_LOSS: IntegrityError,
    grpc.StatusCode.CANCELLED: OperationCancelledError,
}


def details_of(status: grpc.Call) -> str:
    """The text of a status, cut."""
    return (status.details() or "")[:_MOST_SHOWN]


def error_of(status: object, *, endpoint: str, method: str) -> ImageStoreError:
    """The error to raise in a client for a status: grpc's error, or the call that ended.

    Codes without a class of their own are an ImageServiceError with the code's number as its status.
    """
    if not isinstance(status, grpc.Call):  # the library raises nothing else for a call that was sent
        return ImageServiceError(f"{endpoint}: {method} failed")
    code, details = status.code(), details_of(status)
    if code is grpc.StatusCode.UNAVAILABLE:
        # Only a running server sends metadata; its text then says what to do.
        hint = "" if status.trailing_metadata() else "is the server running, and may this user open its socket?"
        return ServiceUnavailableError(f"{endpoint}: {method}: not available: {details}", hint=hint)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceededError(f"{endpoint}: {method}: no answer within the time for it")
    kind = _KINDS.get(code)
    if kind is not None:
        return kind(f"{endpoint}: {method}: {details or code.value[1]}")
    return ImageServiceError(f"{endpoint}: {method}: {code.value[1]}: {details}", status=code.value[0])


@dataclass(frozen=True, slots=True)
class AbsentMethod(grpc.RpcMethodHandler):  # type: ignore[type-arg]  # generic in the types only
    """A handler that refuses the call; interceptors recognise its type."""

    stream_stream: Callable[[Any, Any], Any]
    request_streaming: bool = True
    response_streaming: bool = True
    request_deserializer: None = None
    response_serializer: None = None
    unary_unary: None = None
    unary_stream: None = None
    stream_unary: None = None


class AbsentMethods(grpc.GenericRpcHandler):
    """Refuses every call to a method that begins with ``prefix`` (``/package.``) and has no other handler.

    ``missing`` says for a method, ``/package.Service/Method``, what this server lacks; ``ends_in_class`` as text_of().
    """

    def __init__(self, prefix: str, missing: Callable[[str], str], *, ends_in_class: bool = False) -> None:
        self._prefix = prefix
        self._missing = missing
        self._ends_in_class = ends_in_class

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> AbsentMethod | None:
        """A handler that refuses the call; None for methods without the prefix."""
        method = str(handler_call_details.method)
        if not method.startswith(self._prefix):
            return None

        async def _refusing(_: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
            error = UnsupportedError(f"{method.lstrip('/')} is not served here: {self._missing(method)}")
            await context.abort(code_of(error), text_of(error, ends_in_class=self._ends_in_class))

        return AbsentMethod(_refusing)
