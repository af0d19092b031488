"""``grpc.health.v1.Health``: every service is served until the server stops, and then none.

The library's servicer has no ``List``, and its watchers go on for ever: whoever ended them could only guess whether
they have heard of the last change. These end by themselves once they have.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from grpc_health.v1 import health_pb2, health_pb2_grpc

from imagestore.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from imagestore.server.calls import ServicerContext

#: The package's types don't know the messages of ``List``, nor do its older versions, which don't call it either.
_messages: Final[Any] = health_pb2


class Health(health_pb2_grpc.HealthServicer):
    """Answers who asks whether services are served; for one event loop.

    Args:
        names: full names of the services. The empty one, the server itself, is always among them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(["", *names])
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """From now on nothing is served; who watches is told, and let go."""
        self._stopping.set()

    async def Check(  # noqa: N802 - the interface's name
        self, request: health_pb2.HealthCheckRequest, context: ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """One service's status.

        Raises:
            NotFoundError: it isn't here.
        """
        if request.service not in self._names:
            raise NotFoundError(f"service {request.service!r} is not here")
        return self._status(request.service)

    async def List(self, request: Any, context: ServicerContext) -> Any:  # noqa: N802 - the interface's name
        """Every service's status."""
        return _messages.HealthListResponse(statuses={name: self._status(name) for name in self._names})

    async def Watch(  # noqa: N802 - the interface's name
        self, request: health_pb2.HealthCheckRequest, context: ServicerContext
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """One service's status, and its change when the server stops; of one that isn't here, that nobody knows it."""
        told = self._status(request.service)
        yield told
        await self._stopping.wait()
        last = self._status(request.service)
        if last != told:
            yield last

    def _status(self, name: str) -> health_pb2.HealthCheckResponse:
        known = "NOT_SERVING" if self._stopping.is_set() else "SERVING"
        return health_pb2.HealthCheckResponse(status=known if name in self._names else "SERVICE_UNKNOWN")
