"""Puts the CRI services on a gRPC server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.cri._proto import api_pb2_grpc
from imagestore.cri.images import ImageServicer
from imagestore.cri.runtime import RuntimeServicer
from imagestore.util.rpc import AbsentMethods

if TYPE_CHECKING:
    import grpc

    from imagestore.cri.pulls import PullQueue
    from imagestore.store.workers import StoreWorkers

#: containerd's limit of a message, both ways; clients allow as much. In bytes.
MESSAGE_BYTES: Final = 16 * 1024 * 1024
IMAGE_SERVICE: Final = "runtime.v1.ImageService"
RUNTIME_SERVICE: Final = "runtime.v1.RuntimeService"
#: CRI's, in every version.
_PREFIX: Final = "/runtime."


def add_cri(server: grpc.aio.Server, workers: StoreWorkers, pulls: PullQueue) -> tuple[str, ...]:
    """Register ``runtime.v1.ImageService`` and the subset of ``runtime.v1.RuntimeService``.

    Args:
        server: not started yet; should allow messages of MESSAGE_BYTES.
        workers: the store and the threads for it.
        pulls: made on the server's event loop; the caller closes it after the server.

    Returns:
        The full names of the services.
    """
    api_pb2_grpc.add_ImageServiceServicer_to_server(ImageServicer(workers, pulls), server)
    api_pb2_grpc.add_RuntimeServiceServicer_to_server(RuntimeServicer(workers), server)
    server.add_generic_rpc_handlers((AbsentMethods(_PREFIX, _missing),))
    return (IMAGE_SERVICE, RUNTIME_SERVICE)


def _missing(method: str) -> str:
    if method.startswith(f"/{RUNTIME_SERVICE}/"):
        return "this server keeps images, it runs nothing"
    return f"this server has {IMAGE_SERVICE} and a part of {RUNTIME_SERVICE}"
