"""What a gRPC server offers, and its limits: CRI's and containerd's services, health and reflection.

The limits are against clients that send too much, open too many connections, or stop reading. 16 MiB each way is what
CRI's clients accept and containerd sets. Compressed requests are refused with UNIMPLEMENTED, as containerd refuses
them: 16 KiB on the wire would take 16 MiB here. A client that neither reads nor answers pings is disconnected after
``keepalive`` and its timeout; until then HTTP/2's flow control limits its own streams and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from imagestore.containerd.service import add_containerd
from imagestore.cri.image_service import add_cri
from imagestore.cri.pull_queue import PullQueue
from imagestore.protos.pool import POOL
from imagestore.util.rpc import MESSAGE_BYTES

if TYPE_CHECKING:
    import grpc

    from imagestore.cri.readiness import Readiness
    from imagestore.server.metrics import Metrics
    from imagestore.store.workers import StoreWorkers

#: The name by which health checks ask for the publisher.
PUBLISH_HEALTH: Final = "imagestore.publish"
# A kubelet has one connection: pulls that wait on it must not keep out its other calls.
_STREAMS_PER_CONNECTION: Final = 4096
#: Of a call's headers with their references resolved; kept as long as the call.
_METADATA_BYTES: Final = 16 * 1024
#: A bit for each algorithm; the lowest stands for none.
_NO_COMPRESSION: Final = 1
# Calls that wait for the event loop. The core's own limit, 1,000 for all callers together, ends the next call with
# CANCELLED; connections and their streams are bounded already.
_WAITING_CALLS: Final = 1_000_000
_PING_MILLISECONDS: Final = 60_000
_PONG_MILLISECONDS: Final = 20_000
# A client may ping as often as this without being sent away.
_CLIENT_PING_MILLISECONDS: Final = 10_000
_HANDSHAKE_MILLISECONDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ServedServices:
    """The services of a server, by their full names."""

    names: tuple[str, ...]
    pulls: PullQueue
    health: health.aio.HealthServicer

    async def stop_serving(self) -> None:
        """Report NOT_SERVING to health checks."""
        await self.health.enter_graceful_shutdown()

    async def close(self) -> None:
        """End the pulls that calls left behind; after the server has stopped."""
        await self.pulls.close()

    async def set_health(self, name: str, *, is_serving: bool) -> None:
        """Report the state of a part by its own name."""
        states = health_pb2.HealthCheckResponse
        await self.health.set(name, states.SERVING if is_serving else states.NOT_SERVING)


async def add_services(
    server: grpc.aio.Server,
    workers: StoreWorkers,
    max_concurrent_pulls: int,
    metrics: Metrics | None,
    readiness: Readiness | None = None,
) -> ServedServices:
    """Add every service to a server that isn't started yet."""
    pulls = PullQueue(limit=max_concurrent_pulls, meter=metrics)
    names = (*add_cri(server, workers, pulls, readiness), *add_containerd(server, workers))
    names = (*names, health.SERVICE_NAME, reflection.SERVICE_NAME)
    servicer = health.aio.HealthServicer()
    for name in names:
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    # Reflection looks in one pool. These two libraries have their files in protobuf's own.
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        POOL.AddSerializedFile(file.serialized_pb)
    reflection.enable_server_reflection(names, server, POOL)
    return ServedServices(names, pulls, servicer)


def add_kubelet_services(
    server: grpc.aio.Server, workers: StoreWorkers, services: ServedServices, readiness: Readiness
) -> None:
    """Add CRI as a kubelet needs it to a server of its own; pulls and health are those of the other services."""
    names = (*add_cri(server, workers, services.pulls, readiness, for_kubelet=True), health.SERVICE_NAME)
    health_pb2_grpc.add_HealthServicer_to_server(services.health, server)
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)


def channel_options(max_connections: int) -> tuple[tuple[str, int], ...]:
    """Limits of gRPC's core; ``max_connections`` are those at one time, for each socket."""
    return (
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        # Above the first limit gRPC refuses some calls, above this one all of them.
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        ("grpc.max_concurrent_streams", _STREAMS_PER_CONNECTION),
        # Else the core refuses some of the calls that wait, while those that ended aren't cleared away yet.
        ("grpc.http.overload_protection", 0),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.server.max_pending_requests", _WAITING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _WAITING_CALLS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MILLISECONDS),
        ("grpc.keepalive_time_ms", _PING_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", _PONG_MILLISECONDS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _CLIENT_PING_MILLISECONDS),
    )
