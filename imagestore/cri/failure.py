"""Errors as a CRI client gets them: status code, text, and for our own client the error's data.

The kubelet shows a pull's failure by its own words only when the code is UNKNOWN and the text begins with the name of
the reason (its ``RegistryUnavailable`` and ``SignatureValidationFailed``); every other error has the code of its
category. Texts are cut: they travel in a header, and clients accept 8 KiB of those in all.
"""

from __future__ import annotations

import json
from typing import Final

import grpc

from imagestore.errors import (
    ImageDeniedError,
    ImageStoreError,
    NoMatchingManifestError,
    RegistryUnavailableError,
    StoreFullError,
    UnknownRuntimeHandlerError,
)
from imagestore.util.rpc import code_of, text_of

#: Trailing metadata with an error's data as JSON.
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
    """What a client of ours needs to raise the same error; empty when code and text are enough."""
    match error:
        case UnknownRuntimeHandlerError() if len(error.handler) <= _LONGEST_HANDLER:
            data: dict[str, object] = {"handler": error.handler, "known": error.known}
        case NoMatchingManifestError():
            data = {"reference": error.reference, "wanted": error.wanted, "offered": error.offered[:20]}
        case ImageDeniedError():
            data = {"reference": error.reference, "verifier": error.verifier, "reason": error.reason}
        case StoreFullError():
            data = {}  # the code alone is that of a registry's limit, too
        case _:
            return b""
    raw = json.dumps({"kind": type(error).__name__, "hint": error.hint, **data}).encode()
    return raw if len(raw) <= _MOST_DATA_BYTES else b""
