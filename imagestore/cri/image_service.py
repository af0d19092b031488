"""``runtime.v1.ImageService`` over the store.

The runtime handler selects the record (KEP-4216). An unknown handler is refused with INVALID_ARGUMENT before any
request or change; for an empty one the store's rules for calls without a handler apply (docs/decisions/0004). Every
image in an answer has its handler in ``spec.runtime_handler``.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any, Final, cast

import grpc

import imagestore.cri.records as records
from imagestore.cri.image_views import HandlerView, KubeletView
from imagestore.cri.model import ImageSpec
from imagestore.cri.pull_queue import PullKey
from imagestore.cri.pull_timeout import ProgressWatch
from imagestore.cri.readiness import AlwaysReady
from imagestore.cri.records import ImageUsers
from imagestore.cri.response_cache import FilesystemUse, ImageMessageCache, StatusCache, added
from imagestore.cri.runtime_service import RuntimeServicer
from imagestore.errors import DeadlineExceededError, ImageStoreError, InvalidInputError
from imagestore.oci.digest import Digest
from imagestore.oci.reference import Reference
from imagestore.protos.cri import api_pb2, api_pb2_grpc
from imagestore.registry.credentials.cri import AuthConfig, explicit_source
from imagestore.registry.credentials.lookup import CredentialResolver
from imagestore.util.rpc import MESSAGE_BYTES, AbsentMethods
from imagestore.util.secret import Secret
from imagestore.util.text import cut, size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from imagestore.cri.image_views import ImageView
    from imagestore.cri.pull_queue import PullQueue
    from imagestore.cri.readiness import Readiness
    from imagestore.events import Observer
    from imagestore.store.image_groups import Group
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers
    from imagestore.util.cancel import CancelToken

    Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

#: Annotation of a pod that names the handler, from before ImageSpec had one; containerd still reads it.
HANDLER_ANNOTATION: Final = "io.containerd.cri.runtime-handler"
_STREAM_BATCH: Final = 200
#: What an operator can do about a list that is too long.
_FEWER: Final = "remove images (image collection, 'imagestore gc --unused-for'), or have fewer runtime handlers"
#: A status call that makes an image runnable ends after this; the kubelet waits two minutes.
READY_SECONDS: Final = 110.0
#: How long a removal waits for the runtime, which follows later if it takes longer.
REMOVED_SECONDS: Final = 30.0
#: Before the caller's own limit, so that it gets an answer.
_MARGIN_SECONDS: Final = 1.0
# Log limits for texts of callers: Kubernetes' names have up to 63 and 253 characters; UIDs are shorter than 64.
_LONGEST_POD: Final = 317
_LONGEST_UID: Final = 64


class ImageServicer(api_pb2_grpc.ImageServiceServicer):
    """Answers CRI's image calls."""

    def __init__(
        self,
        workers: StoreWorkers,
        pulls: PullQueue,
        readiness: Readiness | None = None,
        *,
        for_kubelet: bool = False,
    ) -> None:
        self._workers = workers
        self._pulls = pulls
        self._readiness = readiness or AlwaysReady()
        users = ImageUsers()
        self._view: ImageView = KubeletView(users) if for_kubelet else HandlerView()
        self._messages = ImageMessageCache(users, names_handlers=self._view.names_handlers)
        self._statuses = StatusCache()
        self._use = FilesystemUse(workers)
        self._fingerprint_key = secrets.token_bytes(32)
        #: Whether the last list had more than half of what a message may have.
        self._is_near = False

    async def ListImages(  # noqa: N802 - the interface's name
        self, request: api_pb2.ListImagesRequest, context: Context
    ) -> api_pb2.ListImagesResponse:
        """Every image, or those that match the filter's image and handler."""

        def _answer(store: ImageStore) -> tuple[int, bytes]:
            found = self._view.groups(store, _spec(request.filter.image))
            return len(found), self._messages.listed(found, store)

        count, raw = await self._workers.quick(_answer)
        if not request.filter.image.image:
            self._note_size(count, len(raw))
        if len(raw) > MESSAGE_BYTES:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"ListImages: {count} images take {size(len(raw))}, and clients read {size(MESSAGE_BYTES)}; {_FEWER}, "
                "or ask StreamImages",
            )
        return api_pb2.ListImagesResponse.FromString(raw)

    def _note_size(self, count: int, length: int) -> None:
        self._pulls.meter.images_listed(length)
        is_near = length > MESSAGE_BYTES // 2
        if is_near and not self._is_near:
            text = f"{size(length)} of {size(MESSAGE_BYTES)} that clients read; {_FEWER}"
            log.warning("the list of images grows too long", extra={"images": count, "reason": text})
        self._is_near = is_near

    async def StreamImages(  # noqa: N802 - the interface's name
        self, request: api_pb2.StreamImagesRequest, context: Context
    ) -> AsyncIterator[api_pb2.StreamImagesResponse]:
        """The same list in several messages; no message for an empty list."""
        found = await self._workers.quick(lambda store: self._view.groups(store, _spec(request.filter.image)))
        for start in range(0, len(found), _STREAM_BATCH):
            part = found[start : start + _STREAM_BATCH]

            def _answer(store: ImageStore, part: list[Group] = part) -> api_pb2.StreamImagesResponse:
                # Both messages have the images in the same field.
                return api_pb2.StreamImagesResponse.FromString(self._messages.listed(part, store))

            yield await self._workers.quick(_answer)

    async def ImageStatus(  # noqa: N802 - the interface's name
        self, request: api_pb2.ImageStatusRequest, context: Context
    ) -> api_pb2.ImageStatusResponse:
        """One image; an answer without an image if it is absent.

        An image that the runtime doesn't have is made runnable first. If that takes too long, the call ends with
        DEADLINE_EXCEEDED, and the work goes on.
        """
        state, key = self._workers.state(), _status_key(request)
        found = None if request.verbose else self._statuses.get(state, key)
        if found is None:
            found = await self._workers.quick(lambda store: self._status(store, request))
            if not request.verbose and found.HasField("image") and self._messages.is_permanent(found.image):
                self._statuses.put(state, key, found)
        if found.HasField("image"):
            await self._make_ready(found.image.id, context)
        return found

    def _status(self, store: ImageStore, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        record = self._view.record(store, _spec(request.image))
        if record is None:
            return api_pb2.ImageStatusResponse()
        image = self._messages.image(self._view.group_of(store, record), store)
        info = records.verbose_info(record, store) if request.verbose else {}
        return api_pb2.ImageStatusResponse(image=image, info=info)

    async def _make_ready(self, image_id: str, context: Context) -> None:
        """Wait until the runtime has an image.

        Raises:
            DeadlineExceededError: it takes longer than the caller waits.
            PublishError: it failed.
        """
        making = self._readiness.ensure(Digest.parse(image_id))
        if making.done():
            making.result()
            return
        left = cast("float | None", context.time_remaining())  # None without a limit, whatever its type says
        seconds = min(left - _MARGIN_SECONDS, READY_SECONDS) if left is not None else READY_SECONDS
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(making)), max(seconds, 0.0))
        except TimeoutError:
            text = f"image {image_id}: not in the runtime yet; the work goes on"
            raise DeadlineExceededError(text, hint="ask again") from None

    async def PullImage(  # noqa: N802 - the interface's name
        self, request: api_pb2.PullImageRequest, context: Context
    ) -> api_pb2.PullImageResponse:
        """Pull an image; ends with the call's deadline or cancellation, unless other calls joined the pull."""
        if not request.image.image:
            raise InvalidInputError("PullImage: expected an image reference, got none")
        reference = Reference.parse(request.image.image)
        auth = _auth(request.auth)
        explicit = explicit_source(auth, reference.host) if auth is not None else None
        fingerprint = explicit.fingerprint(self._fingerprint_key) if explicit is not None else ""
        # Held while it waits too: a reload of the configuration must not remove its handler.
        with self._workers.hold() as held:
            # An unknown handler is refused here, before any request is sent.
            named = request.image.runtime_handler or request.sandbox_config.annotations.get(HANDLER_ANNOTATION, "")
            handler = held.store.config.handler(named).name
            key = PullKey(id(held.store), str(reference), handler, fingerprint)

            async def _work(token: CancelToken, observer: Observer) -> str:
                credentials = CredentialResolver([explicit]) if explicit is not None else None

                limit = held.store.config.settings.image_pull_progress_timeout
                watch = ProgressWatch(observer, limit) if limit is not None else None

                def _pull(store: ImageStore, token: CancelToken) -> str:
                    with self._readiness.pulling(handler, watch or observer, token) as seen:
                        image = store.pull(
                            key.reference, runtime_handler=handler, credentials=credentials, observer=seen, cancel=token
                        )
                    return str(image.id)

                guard = asyncio.create_task(watch.guard(token)) if watch is not None else None
                try:
                    return await self._workers.transfer(_pull, token, held)
                finally:
                    if guard is not None:
                        guard.cancel()

            pod = request.sandbox_config.metadata
            fields = {"reference": key.reference, "handler": handler}
            fields |= {"pod": cut(f"{pod.namespace}/{pod.name}", _LONGEST_POD), "pod_uid": cut(pod.uid, _LONGEST_UID)}
            try:
                image_id = await self._pulls.pull(key, _work)
                await asyncio.shield(asyncio.wrap_future(self._readiness.ensure(Digest.parse(image_id))))
            except ImageStoreError as error:
                log.info("pull failed", extra={**fields, "error": str(error)})
                raise
            finally:
                self._use.forget()
        log.info("pulled", extra={**fields, "image_id": image_id})
        return api_pb2.PullImageResponse(image_ref=image_id)

    async def RemoveImage(  # noqa: N802 - the interface's name
        self, request: api_pb2.RemoveImageRequest, context: Context
    ) -> api_pb2.RemoveImageResponse:
        """Remove an image with all its references, pinned or not, and free its content.

        As in containerd an empty name is a prefix of every image's id: without images nothing is removed, otherwise it
        is ambiguous, with containerd's code. (If there is only one image, containerd removes it.)
        """
        name, handler = request.image.image, request.image.runtime_handler or None
        if not name:
            if await self._workers.quick(lambda store: any(store.list(runtime_handler=handler, limit=1))):
                await context.abort(
                    grpc.StatusCode.UNKNOWN, 'RemoveImage: expected a reference or an image id, got "": it is ambiguous'
                )
            return api_pb2.RemoveImageResponse()
        try:
            removal = await self._workers.quick(
                lambda store: store.remove(name, runtime_handler=handler, all_names=True, collect=True)
            )
        finally:
            self._use.forget()
        for reference, owner in removal.removed:
            log.info("removed", extra={"reference": reference, "handler": owner})
        try:
            following = asyncio.shield(asyncio.wrap_future(self._readiness.removed()))
            await asyncio.wait_for(following, REMOVED_SECONDS)
        except TimeoutError:
            log.warning("the runtime hasn't removed it yet", extra={"image": name})
        return api_pb2.RemoveImageResponse()

    async def ImageFsInfo(  # noqa: N802 - the interface's name
        self, request: api_pb2.ImageFsInfoRequest, context: Context
    ) -> api_pb2.ImageFsInfoResponse:
        """The disk usage of content, including unfinished downloads.

        For a kubelet the runtime's file systems stand before it, since only the first one is judged
        (``cri_stats_provider.go``); where content is on the first one's device, it counts there too.
        """
        own = await self._use.usage()
        if self._view.names_handlers:
            return api_pb2.ImageFsInfoResponse(image_filesystems=[own])
        others = await asyncio.to_thread(self._readiness.file_systems)
        return api_pb2.ImageFsInfoResponse(image_filesystems=[*added(others, own), own])


def _auth(message: api_pb2.AuthConfig) -> AuthConfig | None:
    if not message.ByteSize():
        return None
    return AuthConfig(
        server_address=message.server_address,
        username=message.username,
        password=Secret(message.password),
        auth=Secret(message.auth),
        identity_token=Secret(message.identity_token),
        registry_token=Secret(message.registry_token),
    )


def _spec(message: api_pb2.ImageSpec) -> ImageSpec:
    return ImageSpec(message.image, message.runtime_handler, dict(message.annotations))


def _status_key(request: api_pb2.ImageStatusRequest) -> tuple[str, str, bool]:
    """All of a request that its answer depends on."""
    return request.image.image, request.image.runtime_handler, bool(request.image.annotations)


IMAGE_SERVICE: Final = "runtime.v1.ImageService"
RUNTIME_SERVICE: Final = "runtime.v1.RuntimeService"


def add_cri(
    server: grpc.aio.Server,
    workers: StoreWorkers,
    pulls: PullQueue,
    readiness: Readiness | None = None,
    *,
    for_kubelet: bool = False,
) -> tuple[str, ...]:
    """Register ``runtime.v1.ImageService`` and the subset of ``runtime.v1.RuntimeService``; returns their full names.

    Args:
        server: not started yet; should allow messages of 16 MiB.
        workers: the store and the threads for it.
        pulls: made on the server's event loop; the caller closes it after the server.
        readiness: makes images runnable; by default the store is all that the runtime needs.
        for_kubelet: a kubelet's view of images (image_views) instead of KEP-4216's.
    """
    images = ImageServicer(workers, pulls, readiness, for_kubelet=for_kubelet)
    api_pb2_grpc.add_ImageServiceServicer_to_server(images, server)
    runtime = RuntimeServicer(workers).handlers(RUNTIME_SERVICE)
    server.add_generic_rpc_handlers((runtime, AbsentMethods("/runtime.", _missing)))
    return (IMAGE_SERVICE, RUNTIME_SERVICE)


def _missing(method: str) -> str:
    if method.startswith(f"/{RUNTIME_SERVICE}/"):
        return "this server keeps images, it runs nothing"
    return f"this server has {IMAGE_SERVICE} and a part of {RUNTIME_SERVICE}"
