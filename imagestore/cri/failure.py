"""Errors as a CRI client gets them: status code, text, and for our own client the error's data.

The kubelet shows a pull's failure by its own words only when the code is UNKNOWN and the text begins with the name of
the reason (its ``RegistryUnavailable`` and ``SignatureValidationFailed``); every other error has the code of its
category. Texts are cut: they travel in a header, and clients accept 8 KiB of those in all.
"""

from __future__ import annotations

import functools
import json
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from imagestore.errors import (
    ImageDeniedError,
    ImageStoreError,
    NoMatchingManifestError,
    RegistryUnavailableError,
    StoreFullError,
    UnknownRuntimeHandlerError,
)
from imagestore.rpc.codes import code_of, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import NoReturn

    Context = grpc.aio.ServicerContext[Any, Any]

Q = TypeVar("Q")
A = TypeVar("A")
S = TypeVar("S")

log = logging.getLogger(__name__)

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


async def abort(context: Context, error: ImageStoreError) -> NoReturn:
    """End a call with an error."""
    code, text = status_of(error)
    data = data_of(error)
    own = ((ERROR_KEY, data),) if data else ()
    # Callers' frames have the error, and it has them, with what they hold: only a garbage collection would free that.
    error.__traceback__ = None
    await context.abort(code, text, (*(context.trailing_metadata() or ()), *own))


async def abort_for_bug(context: Context, error: Exception) -> NoReturn:
    """End a call whose handler has a bug; the exception's own text may hold anything, so only the log gets it."""
    log.error("a call ended in a bug", exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log has it")


def answering(method: Callable[[S, Q, Context], Awaitable[A]]) -> Callable[[S, Q, Context], Awaitable[A]]:
    """Let a unary method raise our errors."""

    @functools.wraps(method)
    async def call(self: S, request: Q, context: Context) -> A:
        try:
            return await method(self, request, context)
        except ImageStoreError as error:
            failed = error
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, its text must not reach the caller
            return await abort_for_bug(context, error)
        return await abort(context, failed)

    return call


def streaming(method: Callable[[S, Q, Context], AsyncIterator[A]]) -> Callable[[S, Q, Context], AsyncIterator[A]]:
    """Let a method with a stream of answers raise our errors."""

    @functools.wraps(method)
    async def call(self: S, request: Q, context: Context) -> AsyncIterator[A]:
        try:
            async for answer in method(self, request, context):
                yield answer
            return
        except ImageStoreError as error:
            failed = error
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, its text must not reach the caller
            await abort_for_bug(context, error)
        await abort(context, failed)

    return call
