"""A peer's status as one of our errors.

The code decides the kind. Two texts are CRI's own words for what a code doesn't say (``RegistryUnavailable``,
``SignatureValidationFailed`` under UNKNOWN), and a server of ours sends the data of some errors along, so that they can
be raised again as they were. Both come from outside: what doesn't fit is left out, and the rest of the status counts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import grpc

from imagestore.cri.failure import ERROR_KEY, REGISTRY_UNAVAILABLE, SIGNATURE_VALIDATION_FAILED
from imagestore.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    AuthenticationError,
    DeadlineExceededError,
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
    ServiceUnavailableError,
    StoreFullError,
    UnknownRuntimeHandlerError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MOST_SHOWN: Final = 4096
_MOST_NAMES: Final = 100
_BY_CODE: Final[Mapping[grpc.StatusCode, Callable[[str], ImageStoreError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInputError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: RateLimitedError,
    grpc.StatusCode.PERMISSION_DENIED: AccessDeniedError,
    grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
    grpc.StatusCode.DATA_LOSS: IntegrityError,
    grpc.StatusCode.CANCELLED: OperationCancelledError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
}


def error_of(status: object, *, endpoint: str, method: str) -> ImageStoreError:
    """The error to raise for a status.

    Args:
        status: the library's error, or the call that ended.
        endpoint: text form, for the message.
        method: short name, for the message.
    """
    if not isinstance(status, grpc.Call):  # the library raises nothing else for a call that was sent
        return ImageServiceError(f"{endpoint}: {method} failed")
    code, details = status.code(), (status.details() or "")[:_MOST_SHOWN]
    if code is grpc.StatusCode.UNAVAILABLE:
        # Metadata comes from servers only: one that sent some is there, and says itself what to do.
        hint = "" if status.trailing_metadata() else "is the server running, and may this user open its socket?"
        return ServiceUnavailableError(f"{endpoint}: {method}: not available: {details}", hint=hint)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceededError(f"{endpoint}: {method}: no answer within the time for it")
    known = _from_data(status, details)
    if known is not None:
        return known
    if code is grpc.StatusCode.UNKNOWN and details.startswith(REGISTRY_UNAVAILABLE):
        return RegistryUnavailableError(_behind(details, REGISTRY_UNAVAILABLE))
    if code is grpc.StatusCode.UNKNOWN and details.startswith(SIGNATURE_VALIDATION_FAILED):
        return ImageDeniedError(method, endpoint, _behind(details, SIGNATURE_VALIDATION_FAILED))
    kind = _BY_CODE.get(code)
    if kind is not None:
        return kind(details or f"{endpoint}: {method}: {code.value[1]}")
    if code is grpc.StatusCode.UNKNOWN:
        # As the kubelet does: these are the server's own words, and whoever compares their beginnings finds it here.
        return ImageServiceError(details or f"{endpoint}: {method}: unknown error", status=code.value[0])
    return ImageServiceError(f"{endpoint}: {method}: {code.value[1]}: {details}", status=code.value[0])


def is_unimplemented(status: object) -> bool:
    """Whether the server doesn't offer the method."""
    return isinstance(status, grpc.Call) and status.code() is grpc.StatusCode.UNIMPLEMENTED


def _behind(details: str, name: str) -> str:
    """What is said behind the name of CRI's error; all of it where that isn't a colon and a text."""
    reason = details.removeprefix(f"{name}: ")
    return reason or details


def _from_data(status: grpc.Call, details: str) -> ImageStoreError | None:
    metadata = status.trailing_metadata() or ()
    raw = next((value for key, value in metadata if key == ERROR_KEY), b"")
    try:
        data: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    return _rebuilt(data, details)


def _rebuilt(data: dict[str, Any], details: str) -> ImageStoreError | None:
    match data:
        case {"kind": "StoreFullError"}:
            return StoreFullError(details)
        case {"kind": "UnknownRuntimeHandlerError", "handler": str(handler), "known": list(known)}:
            return UnknownRuntimeHandlerError(handler, _texts(known))
        case {"kind": "NoMatchingManifestError", "reference": str(reference), "wanted": str(wanted), **rest}:
            hint, offered = rest.get("hint"), rest.get("offered")
            return NoMatchingManifestError(
                reference, wanted, _texts(offered), hint=hint if isinstance(hint, str) else ""
            )
        case {"kind": "ImageDeniedError", "reference": str(reference), "verifier": str(verifier), **rest}:
            reason = rest.get("reason")
            return ImageDeniedError(reference, verifier, reason if isinstance(reason, str) else "")
    return None


def _texts(values: object) -> list[str]:
    return [each for each in values if isinstance(each, str)][:_MOST_NAMES] if isinstance(values, list) else []
