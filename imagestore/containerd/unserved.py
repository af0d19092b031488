"""Services of containerd that this store does not have.

Two of them are answered, because image tools call them: this store has no snapshots and no containers. All other calls
are refused, and the error names what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from imagestore.containerd._proto import snapshots_pb2 as wire
from imagestore.containerd._proto.snapshots_pb2_grpc import SnapshotsServicer
from imagestore.containerd.calls import namespace_of
from imagestore.errors import NotFoundError
from imagestore.util.rpc import AbsentMethods

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from imagestore.containerd.calls import Context

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


class SnapshotsService(SnapshotsServicer):
    """Reports no snapshots, so that tools see that no image is unpacked here."""

    async def Stat(self, request: wire.StatSnapshotRequest, context: Context) -> wire.StatSnapshotResponse:  # noqa: N802
        """No snapshot has this key."""
        namespace_of(context)
        raise NotFoundError(f"snapshot {request.key!r} does not exist: nothing is unpacked here")

    async def List(  # noqa: N802
        self, request: wire.ListSnapshotsRequest, context: Context
    ) -> AsyncIterator[wire.ListSnapshotsResponse]:
        """An empty list."""
        namespace_of(context)
        none: tuple[wire.ListSnapshotsResponse, ...] = ()
        for each in none:
            yield each


def no_containers() -> grpc.GenericRpcHandler:
    """Lists of containers are empty: ``ctr images prune --all`` asks which images they use.

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


def absent_services() -> AbsentMethods:
    """Answers every call to a service of containerd's that has no other answer."""
    return AbsentMethods(_PREFIX, _missing, ends_in_class=True)


def _missing(method: str) -> str:
    return _MISSING.get(method.removeprefix(_PREFIX).partition(".")[0], "this store doesn't have it")
