"""Errors over CRI: the status code and text of an error for a client, and the error for a server's status.

The kubelet rephrases the failure of a pull only if the code is UNKNOWN and the text begins with the name of the reason
(``RegistryUnavailable``, ``SignatureValidationFailed``); every other error has the code of its category. Texts are cut,
since they are sent in a header, and clients accept 8 KiB of headers.

In the other direction the code decides the class of the error. Our own server also sends the data of some errors, so
that the client can raise the same error. Both come from outside: data of an unexpected form is ignored.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final

import grpc

from imagestore.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    AuthenticationError,
    ImageDeniedError,
    ImageServiceError,
    ImageStoreError,
    IntegrityError,
    InvalidInputError,
    NoMatchingManifestError,
    NotFoundError,
    OperationCancelledError,
    RateLimitedError,
    RegistryUnavailableError,
    StoreFullError,
    UnknownRuntimeHandlerError,
)
from imagestore.util import rpc
from imagestore.util.rpc import code_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


#: Key of the trailing metadata with an error's data as JSON.
ERROR_KEY: Final = "imagestore-error-bin"
REGISTRY_UNAVAILABLE: Final = "RegistryUnavailable"
SIGNATURE_VALIDATION_FAILED: Final = "SignatureValidationFailed"
_MOST_DATA_BYTES: Final = 2048
_LONGEST_HANDLER: Final = 253


def status_of(error: ImageStoreError) -> tuple[grpc.StatusCode, str]:
    """The code and the text of an error."""
    text = text_of(error)
    if isinstance(error, RegistryUnavailableError):
        return grpc.StatusCode.UNKNOWN, f"{REGISTRY_UNAVAILABLE}: {text}"
    if isinstance(error, ImageDeniedError):
        return grpc.StatusCode.UNKNOWN, f"{SIGNATURE_VALIDATION_FAILED}: {text}"
    return code_of(error), text


def data_of(error: ImageStoreError) -> bytes:
    """The data that our client needs to raise the same error; empty if code and text are enough."""
    match error:
        case UnknownRuntimeHandlerError() if len(error.handler) <= _LONGEST_HANDLER:
            data: dict[str, object] = {"handler": error.handler, "known": error.known}
        case NoMatchingManifestError():
            data = {"reference": error.reference, "wanted": error.wanted, "offered": error.offered[:20]}
        case ImageDeniedError():
            data = {"reference": error.reference, "verifier": error.verifier, "reason": error.reason}
        case StoreFullError():
            data = {}  # a registry's rate limit has the same code
        case _:
            return b""
    raw = json.dumps({"kind": type(error).__name__, "hint": error.hint, **data}).encode()
    return raw if len(raw) <= _MOST_DATA_BYTES else b""


_AS_ANY_SERVICE: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_MOST_NAMES: Final = 100
_BY_CODE: Final[Mapping[grpc.StatusCode, Callable[[str], ImageStoreError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInputError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: functools.partial(RateLimitedError, status=429),
    grpc.StatusCode.PERMISSION_DENIED: AccessDeniedError,
    grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
    grpc.StatusCode.DATA_LOSS: IntegrityError,
    grpc.StatusCode.CANCELLED: OperationCancelledError,
}


def error_of(status: object, *, endpoint: str, method: str) -> ImageStoreError:
    """The error to raise for a status: grpc's error, or the call that ended."""
    if not isinstance(status, grpc.Call) or status.code() in _AS_ANY_SERVICE:
        return rpc.error_of(status, endpoint=endpoint, method=method)
    code, details = status.code(), rpc.details_of(status)
    known = _from_data(status, details)
    if known is not None:
        return known
    if code is grpc.StatusCode.UNKNOWN and details.startswith(REGISTRY_UNAVAILABLE):
        return RegistryUnavailableError(details.removeprefix(f"{REGISTRY_UNAVAILABLE}: ") or details)
    if code is grpc.StatusCode.UNKNOWN and details.startswith(SIGNATURE_VALIDATION_FAILED):
        reason = details.removeprefix(f"{SIGNATURE_VALIDATION_FAILED}: ") or details
        return ImageDeniedError(method, endpoint, reason)
    kind = _BY_CODE.get(code)
    if kind is not None:
        return kind(details or f"{endpoint}: {method}: {code.value[1]}")
    if code is grpc.StatusCode.UNKNOWN:
        # The server's text without a prefix, as in the kubelet: callers compare its beginning.
        return ImageServiceError(details or f"{endpoint}: {method}: unknown error", status=code.value[0])
    return ImageServiceError(f"{endpoint}: {method}: {code.value[1]}: {details}", status=code.value[0])


def _from_data(status: grpc.Call, details: str) -> ImageStoreError | None:
    """The error of our own server, from the data that it sent along."""
    metadata = status.trailing_metadata() or ()
    raw = next((value for key, value in metadata if key == ERROR_KEY), b"")
    try:
        data: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    match data:
        case {"kind": "StoreFullError"}:
            return StoreFullError(details)
        case {"kind": "UnknownRuntimeHandlerError", "handler": str(handler), "known": list(known)}:
            return UnknownRuntimeHandlerError(handler, _texts(known))
        case {"kind": "NoMatchingManifestError", "reference": str(reference), "wanted": str(wanted), **rest}:
            hint = rest.get("hint")
            hint = hint if isinstance(hint, str) else ""
            return NoMatchingManifestError(reference, wanted, _texts(rest.get("offered")), hint=hint)
        case {"kind": "ImageDeniedError", "reference": str(reference), "verifier": str(verifier), **rest}:
            reason = rest.get("reason")
            return ImageDeniedError(reference, verifier, reason if isinstance(reason, str) else "")
    return None


def _texts(values: object) -> list[str]:
    return [each for each in values if isinstance(each, str)][:_MOST_NAMES] if isinstance(values, list) else []
