"""What all calls share: the namespace and the lease in their headers, and the wait for an ingest.

containerd-namespace   required wherever something namespaced is asked for: absent is FAILED_PRECONDITION,
                       malformed INVALID_ARGUMENT
containerd-lease       what the call makes is put under this lease
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from imagestore.errors import IngestLockedError, PreconditionError
from imagestore.metadata.records import checked_namespace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, TypeVar

    import grpc

    T = TypeVar("T")
    Context = grpc.aio.ServicerContext[Any, Any]

NAMESPACE_HEADER: Final = "containerd-namespace"
LEASE_HEADER: Final = "containerd-lease"
#: Pauses between attempts at a locked ingest. containerd's own store tries ten times within about half a second, since
#: its clients close a writer and open the next one without waiting for the end of the first stream.
_PAUSES_SECONDS: Final = (0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256)


def namespace_of(context: Context) -> str:
    """The caller's namespace.

    Raises:
        PreconditionError: none is given.
        InvalidInputError: it breaks the rule.
    """
    namespace = _header(context, NAMESPACE_HEADER)
    if not namespace:
        raise PreconditionError("namespace is required", hint=f"send the header {NAMESPACE_HEADER}")
    return checked_namespace(namespace)


def lease_of(context: Context) -> str:
    """The name of the caller's lease; empty without one."""
    return _header(context, LEASE_HEADER)


def _header(context: Context, name: str) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == name and isinstance(value, str):
            return value
    return ""


async def once_unlocked(attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of work that needs an ingest, tried again for half a second while another writer has it open.

    Args:
        attempt: begins the work; may be called several times.

    Raises:
        ImageStoreError: the work's; an IngestLockedError is the last attempt's.
    """
    for pause in _PAUSES_SECONDS:
        try:
            return await attempt()
        except IngestLockedError:
            await asyncio.sleep(pause)
    return await attempt()
