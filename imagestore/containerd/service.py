"""Puts containerd's services on a gRPC server.

There are two sets of services: *containerd* for clients such as ctr, which name a namespace in each call; *proxy
content* for a containerd that keeps its content here (``proxy_plugins`` of type ``content``). A proxy can't be told
from a client by its calls, since some containerds send a namespace header to their backends and some don't, so it gets
a server of its own: one name, one server, one containerd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.containerd._proto import (
    content_pb2,
    images_pb2,
    introspection_pb2,
    leases_pb2,
    namespaces_pb2,
    snapshots_pb2,
    version_pb2,
)
from imagestore.containerd._proto.content_pb2_grpc import add_ContentServicer_to_server
from imagestore.containerd._proto.images_pb2_grpc import add_ImagesServicer_to_server
from imagestore.containerd._proto.introspection_pb2_grpc import add_IntrospectionServicer_to_server
from imagestore.containerd._proto.leases_pb2_grpc import add_LeasesServicer_to_server
from imagestore.containerd._proto.namespaces_pb2_grpc import add_NamespacesServicer_to_server
from imagestore.containerd._proto.snapshots_pb2_grpc import add_SnapshotsServicer_to_server
from imagestore.containerd._proto.version_pb2_grpc import add_VersionServicer_to_server
from imagestore.containerd.collector import Collector
from imagestore.containerd.content import ContentService
from imagestore.containerd.content_view import proxy_content_view
from imagestore.containerd.images import ImagesService
from imagestore.containerd.introspection import IntrospectionService, VersionService
from imagestore.containerd.leases import LeasesService
from imagestore.containerd.namespaces import NamespacesService
from imagestore.containerd.unserved import SnapshotsService, absent_services, no_containers

if TYPE_CHECKING:
    import grpc

    from imagestore.store.workers import StoreWorkers


def add_containerd(
    server: grpc.aio.Server, workers: StoreWorkers, *, collects_after_removals: bool = True
) -> tuple[str, ...]:
    """Serve clients of containerd; call it on the server's event loop, before the server starts.

    Args:
        server: gets the services; its messages may be 16 MiB long (the caller's options).
        workers: the store.
        collects_after_removals: false where another process collects; clients that wait for one get it still.

    Returns:
        Full names of the services, for reflection and health.
    """
    collector = Collector(workers, follows_removals=collects_after_removals)
    add_ContentServicer_to_server(ContentService(workers, collector), server)
    add_ImagesServicer_to_server(ImagesService(workers, collector), server)
    add_LeasesServicer_to_server(LeasesService(workers, collector), server)
    add_NamespacesServicer_to_server(NamespacesService(workers), server)
    add_VersionServicer_to_server(VersionService(), server)
    add_IntrospectionServicer_to_server(IntrospectionService(workers), server)
    add_SnapshotsServicer_to_server(SnapshotsService(), server)
    server.add_generic_rpc_handlers((no_containers(), absent_services()))
    files = (
        content_pb2,
        images_pb2,
        introspection_pb2,
        leases_pb2,
        namespaces_pb2,
        snapshots_pb2,
        version_pb2,
    )
    return tuple(service.full_name for file in files for service in file.DESCRIPTOR.services_by_name.values())


def add_proxy_content(server: grpc.aio.Server, workers: StoreWorkers, *, name: str = "containerd") -> tuple[str, ...]:
    """Serve one containerd as its content store: flat, namespaces ignored, nothing of its content is collected.

    Args:
        server: gets the service; not one that add_containerd() was called with.
        workers: the store.
        name: tells this containerd's content from that of others with a proxy here; must stay the same over restarts.

    Returns:
        Full names of the services.

    Raises:
        InvalidInputError: the name is not letters and digits with single ``.``, ``_`` or ``-`` between them.
    """
    service = ContentService(workers, Collector(workers), proxy=proxy_content_view(name))
    add_ContentServicer_to_server(service, server)
    add_VersionServicer_to_server(VersionService(), server)
    server.add_generic_rpc_handlers((absent_services(),))
    files = (content_pb2, version_pb2)
    return tuple(service.full_name for file in files for service in file.DESCRIPTOR.services_by_name.values())
