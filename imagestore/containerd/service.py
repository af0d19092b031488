"""Adds containerd's services to a gRPC server.

There are two sets of services: *containerd* for clients such as ctr, which name a namespace in each call, and *proxy
content* for a containerd that keeps its content here (``proxy_plugins`` of type ``content``). Calls don't show whether
they come from a proxy, because only some containerds send it a namespace header. So each proxied containerd has a
server of its own.

Two services that this store lacks are answered, because image tools call them: there are no snapshots and no
containers. Calls of other services are refused with an error that names what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from imagestore.containerd.calls import namespace_of
from imagestore.containerd.collector import Collector
from imagestore.containerd.content import ContentService
from imagestore.containerd.content_view import proxy_content_view
from imagestore.containerd.images import ImagesService
from imagestore.containerd.introspection import IntrospectionService, VersionService
from imagestore.containerd.leases import LeasesService
from imagestore.containerd.namespaces import NamespacesService
from imagestore.errors import NotFoundError
from imagestore.protos.containerd import (
    content_pb2,
    images_pb2,
    introspection_pb2,
    leases_pb2,
    namespaces_pb2,
    snapshots_pb2,
    version_pb2,
)
from imagestore.protos.containerd.content_pb2_grpc import add_ContentServicer_to_server
from imagestore.protos.containerd.images_pb2_grpc import add_ImagesServicer_to_server
from imagestore.protos.containerd.introspection_pb2_grpc import add_IntrospectionServicer_to_server
from imagestore.protos.containerd.leases_pb2_grpc import add_LeasesServicer_to_server
from imagestore.protos.containerd.namespaces_pb2_grpc import add_NamespacesServicer_to_server
from imagestore.protos.containerd.version_pb2_grpc import add_VersionServicer_to_server
from imagestore.util.rpc import AbsentMethods

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import ModuleType

    from imagestore.containerd.calls import Context
    from imagestore.store.workers import StoreWorkers
_PREFIX: Final = "/containerd.services."
_MISSING: Final[Mapping[str, str]] = {
    "containers": "it has images, and runs no containers",
    "diff": "it unpacks no layers; fetch or import without unpacking",
    "events": "it publishes no events",
    "sandbox": "it runs no sandboxes",
    "snapshots": "it unpacks no layers, so there are no snapshots; fetch or import without unpacking",
    "streaming": "transfers go over the content service; use --local",
    "tasks": "it runs no containers",
    "transfer": "transfers go over the content service; use --local",
}


def add_containerd(server: grpc.aio.Server, workers: StoreWorkers) -> tuple[str, ...]:
    """Serve clients of containerd; to be called on the server's event loop, before the server starts.

    Args:
        server: its options must allow messages of 16 MiB.
        workers: the store. Only a request with ``sync`` collects what it freed.

    Returns:
        Full names of the services, for reflection and health.
    """
    collector = Collector(workers)
    add_ContentServicer_to_server(ContentService(workers), server)
    add_ImagesServicer_to_server(ImagesService(workers, collector), server)
    add_LeasesServicer_to_server(LeasesService(workers, collector), server)
    add_NamespacesServicer_to_server(NamespacesService(workers), server)
    add_VersionServicer_to_server(VersionService(), server)
    add_IntrospectionServicer_to_server(IntrospectionService(workers), server)
    server.add_generic_rpc_handlers((_no_snapshots(), _no_containers(), _absent_services()))
    return _names(content_pb2, images_pb2, introspection_pb2, leases_pb2, namespaces_pb2, snapshots_pb2, version_pb2)


def add_proxy_content(server: grpc.aio.Server, workers: StoreWorkers, *, name: str = "containerd") -> tuple[str, ...]:
    """Serve one containerd as its content store: without namespaces; its content is not collected.

    Args:
        server: another one than that of add_containerd().
        workers: the store.
        name: owner of this containerd's content; must stay the same over restarts.

    Returns:
        Full names of the services.

    Raises:
        InvalidInputError: the name is not letters and digits with single ``.``, ``_`` or ``-`` between them.
    """
    add_ContentServicer_to_server(ContentService(workers, proxy=proxy_content_view(name)), server)
    add_VersionServicer_to_server(VersionService(), server)
    server.add_generic_rpc_handlers((_absent_services(),))
    return _names(content_pb2, version_pb2)


def _names(*files: ModuleType) -> tuple[str, ...]:
    return tuple(service.full_name for file in files for service in file.DESCRIPTOR.services_by_name.values())


class SnapshotsService:
    """Reports no snapshots, so that tools see that no image is unpacked here."""

    async def Stat(
        self, request: snapshots_pb2.StatSnapshotRequest, context: Context
    ) -> snapshots_pb2.StatSnapshotResponse:
        """No snapshot has this key."""
        namespace_of(context)
        raise NotFoundError(f"snapshot {request.key!r} does not exist: nothing is unpacked here")

    async def List(
        self, request: snapshots_pb2.ListSnapshotsRequest, context: Context
    ) -> AsyncIterator[snapshots_pb2.ListSnapshotsResponse]:
        """An empty list."""
        namespace_of(context)
        none: tuple[snapshots_pb2.ListSnapshotsResponse, ...] = ()
        for each in none:
            yield each


def _no_snapshots() -> grpc.GenericRpcHandler:
    """The two calls about snapshots that are served; the others are refused with what is missing."""
    service = SnapshotsService()
    return grpc.method_handlers_generic_handler(
        "containerd.services.snapshots.v1.Snapshots",
        {
            "Stat": grpc.unary_unary_rpc_method_handler(
                service.Stat,
                snapshots_pb2.StatSnapshotRequest.FromString,
                snapshots_pb2.StatSnapshotResponse.SerializeToString,
            ),
            "List": grpc.unary_stream_rpc_method_handler(
                service.List,
                snapshots_pb2.ListSnapshotsRequest.FromString,
                snapshots_pb2.ListSnapshotsResponse.SerializeToString,
            ),
        },
    )


def _no_containers() -> grpc.GenericRpcHandler:
    """Empty lists of containers, which ``ctr images prune --all`` requests to find the images in use.

    Requests are not parsed, and an answer without containers has no bytes, so no message classes are needed.
    """

    async def _none(_request: bytes, context: Context) -> bytes:
        namespace_of(context)
        return b""

    async def _none_streamed(_request: bytes, context: Context) -> AsyncIterator[bytes]:
        namespace_of(context)
        nothing: tuple[bytes, ...] = ()
        for each in nothing:
            yield each

    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "List": grpc.unary_unary_rpc_method_handler(_none),
        "ListStream": grpc.unary_stream_rpc_method_handler(_none_streamed),
    }
    return grpc.method_handlers_generic_handler("containerd.services.containers.v1.Containers", methods)


def _absent_services() -> AbsentMethods:
    """Answers every call to a service of containerd's that has no other answer."""
    return AbsentMethods(_PREFIX, _missing, ends_in_class=True)


def _missing(method: str) -> str:
    return _MISSING.get(method.removeprefix(_PREFIX).partition(".")[0], "this store doesn't have it")
