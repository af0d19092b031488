"""containerd.services.content.v1: blobs and unfinished writes of a namespace, or of a proxy."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Final

from imagestore.containerd.calls import changed_map, checked_mask, lease_of, namespace_of, once_unlocked, timestamp
from imagestore.containerd.content_view import content_view_of
from imagestore.containerd.filters import Filter, labelled
from imagestore.containerd.upload import Upload, UploadPart
from imagestore.content.blob_files import damage_named
from imagestore.errors import ContentNotFoundError, IngestLockedError, OutOfRangeError
from imagestore.oci.digest import Digest
from imagestore.protos.containerd import content_pb2 as wire
from imagestore.protos.containerd.content_pb2_grpc import ContentServicer
from imagestore.protos.google.protobuf.empty_pb2 import Empty
from imagestore.util.disk_errors import translated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from typing import BinaryIO

    from imagestore.containerd.calls import Context
    from imagestore.containerd.content_view import ContentView
    from imagestore.containerd.filters import Fields
    from imagestore.content.api import IngestStatus
    from imagestore.metadata.records import ContentRecord
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers
    from imagestore.util.cancel import CancelToken

    Stage = Callable[[ImageStore, CancelToken], None]

#: containerd's bounds of one message.
_READ_BYTES: Final = 1024 * 1024
_LIST_LENGTH: Final = 100


class ContentService(ContentServicer):
    """Serves content.

    Args:
        workers: the store.
        proxy: the view for all calls; None for the namespace in each call's headers.
    """

    def __init__(self, workers: StoreWorkers, proxy: ContentView | None = None) -> None:
        self._workers = workers
        self._proxy = proxy

    async def Info(self, request: wire.InfoRequest, context: Context) -> wire.InfoResponse:
        """Size, times and labels of a blob."""

        def _work(store: ImageStore) -> wire.InfoResponse:
            found = self._view(context).get(store, Digest.parse(request.digest))
            return wire.InfoResponse(info=_info(found))

        return await self._workers.quick(_work)

    async def Update(self, request: wire.UpdateRequest, context: Context) -> wire.UpdateResponse:
        """Change labels."""

        def _work(store: ImageStore) -> wire.UpdateResponse:
            view, digest = self._view(context), Digest.parse(request.info.digest)
            paths = list(request.update_mask.paths)
            checked_mask(paths, whole=("labels",), keyed=("labels",))
            with store.metadata.exclusive():
                before = view.get(store, digest)
                labels = changed_map("labels", before.labels, dict(request.info.labels), paths)
                view.set_labels(store, digest, labels)
                return wire.UpdateResponse(info=_info(view.get(store, digest)))

        return await self._workers.quick(_work)

    async def List(self, request: wire.ListContentRequest, context: Context) -> AsyncIterator[wire.ListContentResponse]:
        """Blobs by digest or label."""

        def _work(store: ImageStore, cancel: CancelToken) -> list[wire.Info]:
            wanted = Filter.parse(request.filters)
            return [_info(each) for each in wanted.among(self._view(context).all(store), _fields, cancel)]

        found = await self._workers.transfer(_work)
        for start in range(0, len(found), _LIST_LENGTH):
            yield wire.ListContentResponse(info=found[start : start + _LIST_LENGTH])

    async def Delete(self, request: wire.DeleteContentRequest, context: Context) -> Empty:
        """Remove a blob from the namespace."""

        def _work(store: ImageStore) -> Empty:
            view, digest = self._view(context), Digest.parse(request.digest)
            if not view.forget(store, digest):
                raise ContentNotFoundError(f"content {digest} is not in {view.owner}")
            return Empty()

        return await self._workers.quick(_work)

    async def Read(self, request: wire.ReadContentRequest, context: Context) -> AsyncIterator[wire.ReadContentResponse]:
        """A blob's bytes; offsets in the answers count from the requested offset."""

        def _begin(store: ImageStore, _: CancelToken) -> tuple[BinaryIO, int, int, bytes]:
            found = self._view(context).get(store, Digest.parse(request.digest))
            blob = store.content.open(found.digest)
            try:
                size, start = os.fstat(blob.fileno()).st_size, max(request.offset, 0)
                if start > size:
                    raise OutOfRangeError(f"content {found.digest}: offset {start} is behind its end at {size}")
                end = min(start + request.size, size) if request.size > 0 else size
                # Read the first piece here: most reads are small, and a further call of a thread costs time.
                return blob, start, end, _piece(blob, found.digest, end - start, start)
            except BaseException:
                blob.close()
                raise

        blob, start, end, data = await self._workers.transfer(_begin)
        digest = Digest.parse(request.digest)

        def _read(length: int, position: int) -> Callable[[ImageStore, CancelToken], bytes]:
            return lambda _store, _token: _piece(blob, digest, length, position)

        with blob:
            position = start
            while data:
                answer = [wire.ReadContentResponse(offset=position - start, data=data)]
                position += len(data)
                # A slow caller must not keep a second copy of the piece in memory while the first is being sent.
                data = b""
                yield answer.pop()
                if position >= end:
                    break
                data = await self._workers.transfer(_read(end - position, position))

    async def Status(self, request: wire.StatusRequest, context: Context) -> wire.StatusResponse:
        """One unfinished write."""

        def _work(store: ImageStore) -> wire.StatusResponse:
            view = self._view(context)
            status = view.status(store, request.ref)
            if status is None:
                raise ContentNotFoundError(f"no unfinished write {request.ref!r}")
            expected = store.metadata.namespaces.ingests(view.owner)
            return wire.StatusResponse(status=_status(view, status, expected))

        return await self._workers.quick(_work)

    async def ListStatuses(self, request: wire.ListStatusesRequest, context: Context) -> wire.ListStatusesResponse:
        """Unfinished writes; a filter may ask for ref."""

        def _work(store: ImageStore, cancel: CancelToken) -> wire.ListStatusesResponse:
            wanted, view = Filter.parse(request.filters), self._view(context)
            expected = store.metadata.namespaces.ingests(view.owner)
            found = wanted.among(view.statuses(store), lambda each: labelled({"ref": each.ref}), cancel)
            return wire.ListStatusesResponse(statuses=[_status(view, each, expected) for each in found])

        return await self._workers.transfer(_work)

    async def Abort(self, request: wire.AbortRequest, context: Context) -> Empty:
        """Discard an unfinished write. Unlike in containerd, a write that is open can't be discarded."""

        def _work(store: ImageStore) -> Empty:
            view = self._view(context)
            if view.status(store, request.ref) is None:
                # containerd's plain content store reports success here, the one with namespaces doesn't.
                if view.is_proxy:
                    return Empty()
                raise ContentNotFoundError(f"no unfinished write {request.ref!r}")
            on_disk = view.ref_on_disk(request.ref)
            if store.content.status(on_disk) is None and view.ref_of(request.ref) == request.ref:
                on_disk = request.ref  # the write belongs to a pull, not to a client
            if not store.content.abort(on_disk):
                raise IngestLockedError(f"write {request.ref!r} is going on", hint="end it first")
            store.metadata.namespaces.forget_ingest(view.owner, on_disk)
            return Empty()

        return await once_unlocked(lambda: self._workers.quick(_work))

    async def Write(
        self, request_iterator: AsyncIterator[wire.WriteContentRequest], context: Context
    ) -> AsyncIterator[wire.WriteContentResponse]:
        """Write messages into an ingest; see ``upload`` for what each message does."""
        upload: Upload | None = None
        answer = wire.WriteContentResponse()
        try:
            async for request in request_iterator:
                is_first = upload is None
                upload = upload or Upload(self._view(context), lease_of(context))
                await once_unlocked(
                    # No local variable for the stage: in a traceback's frames it would keep the message in memory.
                    functools.partial(self._workers.transfer, _stage(upload, request, answer, is_first=is_first))
                )
                yield answer
                if request.action == wire.COMMIT:
                    break
            if upload is not None:
                yield answer  # containerd sends its last answer twice
        finally:
            # Before the status is sent, because the caller may open the ingest again at once.
            if upload is not None:
                await self._workers.transfer(_closing(upload))

    def _view(self, context: Context) -> ContentView:
        return self._proxy or content_view_of(namespace_of(context))


def _piece(blob: BinaryIO, digest: Digest, length: int, position: int) -> bytes:
    # Not the file's read(): during a slow read, its lock would block close() on the event loop.
    with translated("read", blob.name), damage_named(digest):
        return os.pread(blob.fileno(), min(_READ_BYTES, length), position)


def _closing(upload: Upload) -> Stage:
    def _run_stage(_store: ImageStore, _token: CancelToken) -> None:
        upload.close()

    return _run_stage


def _stage(
    upload: Upload, request: wire.WriteContentRequest, answer: wire.WriteContentResponse, *, is_first: bool
) -> Stage:
    """The work for one message; fills the answer."""
    piece = UploadPart(request.ref, request.total, request.expected, request.offset, request.data)

    def _run_stage(store: ImageStore, token: CancelToken) -> None:
        if is_first:
            upload.open(store, piece)
        else:
            upload.check(store, piece)
        if request.action in (wire.WRITE, wire.COMMIT):
            upload.write(store, piece, token)
        if request.action == wire.COMMIT:
            upload.commit(store, dict(request.labels))
        if request.action == wire.STAT:
            _stat(answer, upload.status(store), upload.total)
        answer.action = request.action
        answer.offset = upload.offset
        answer.digest = str(upload.digest)

    return _run_stage


def _stat(answer: wire.WriteContentResponse, status: IngestStatus, total: int) -> None:
    """Times and total; later answers of the stream repeat them, as containerd's do."""
    answer.started_at.CopyFrom(timestamp(status.started_at))
    answer.updated_at.CopyFrom(timestamp(status.updated_at))
    answer.total = total or status.total


def _fields(record: ContentRecord) -> Fields:
    return labelled({"digest": str(record.digest)}, labels=record.labels)


def _info(record: ContentRecord) -> wire.Info:
    return wire.Info(
        digest=str(record.digest),
        size=record.size,
        created_at=timestamp(record.created_at),
        updated_at=timestamp(record.updated_at),
        labels=record.labels,
    )


def _status(view: ContentView, status: IngestStatus, known: Mapping[str, tuple[str, str]]) -> wire.Status:
    expected, _ = known.get(view.ref_on_disk(status.ref), ("", ""))
    return wire.Status(
        started_at=timestamp(status.started_at),
        updated_at=timestamp(status.updated_at),
        ref=status.ref,
        offset=status.offset,
        total=status.total,
        expected=expected,
    )
