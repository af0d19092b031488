"""What containerd has and this store hasn't."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.containerd._proto import snapshots_pb2 as wire
from imagestore.containerd._proto.snapshots_pb2_grpc import SnapshotsServicer
from imagestore.containerd.calls import namespace_of, refuse
from imagestore.errors import ImageStoreError, NotFoundError
from imagestore.rpc.absent import AbsentMethods

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
    """Tools that ask whether an image is unpacked get the true answer: it isn't."""

    async def Stat(self, request: wire.StatSnapshotRequest, context: Context) -> wire.StatSnapshotResponse:  # noqa: N802
        """No snapshot has this key."""
        try:
            namespace_of(context)
        except ImageStoreError as error:
            await refuse(context, error)
        await refuse(context, NotFoundError(f"snapshot {request.key!r} does not exist: nothing is unpacked here"))

    async def List(  # noqa: N802
        self, request: wire.ListSnapshotsRequest, context: Context
    ) -> AsyncIterator[wire.ListSnapshotsResponse]:
        """None."""
        try:
            namespace_of(context)
        except ImageStoreError as error:
            await refuse(context, error)
        none: tuple[wire.ListSnapshotsResponse, ...] = ()
        for each in none:
            yield each


def absent_services() -> AbsentMethods:
    """Answers every call to a service of containerd's that nobody else answers."""
    return AbsentMethods(_PREFIX, _missing)


def _missing(method: str) -> str:
    return _MISSING.get(method.removeprefix(_PREFIX).partition(".")[0], "this store doesn't have it")
