"""Which services a server offers: CRI's, containerd's, and gRPC's own health and reflection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from imagestore.containerd.service import add_containerd
from imagestore.cri.image_service import add_cri
from imagestore.cri.pull_queue import PullQueue

if TYPE_CHECKING:
    import grpc

    from imagestore.server.metrics import Metrics
    from imagestore.store.workers import StoreWorkers


@dataclass(frozen=True, slots=True)
class ServedServices:
    """What was added to a server.

    Attributes:
        names: full names of the services.
    """

    names: tuple[str, ...]
    _pulls: PullQueue
    _health: health.aio.HealthServicer

    async def turn_away(self) -> None:
        """Tell who asks, and who watches, that no new work is wanted."""
        await self._health.enter_graceful_shutdown()

    async def close(self) -> None:
        """End what calls left behind; after the server has stopped."""
        await self._pulls.close()


async def add_services(
    server: grpc.aio.Server, workers: StoreWorkers, max_concurrent_pulls: int, metrics: Metrics | None
) -> ServedServices:
    """Add every service to a server.

    Args:
        server: not started yet.
        workers: the store.
        max_concurrent_pulls: pulls at work at one time.
        metrics: hears of pulls, or None.
    """
    pulls = PullQueue(limit=max_concurrent_pulls, meter=metrics)
    # The server's own collector hears of removals, unless collecting is left to others.
    names = (*add_cri(server, workers, pulls), *add_containerd(server, workers, collects_after_removals=False))
    names = (*names, health.SERVICE_NAME, reflection.SERVICE_NAME)
    servicer = health.aio.HealthServicer()
    for name in names:
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection(names, server)
    return ServedServices(names, pulls, servicer)
