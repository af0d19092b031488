"""A client for any CRI endpoint, ours or a container runtime's; where CRI leaves a choice, it does as the kubelet's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import grpc

from imagestore.cri.endpoint import Endpoint
from imagestore.cri.errors import error_of, is_unimplemented
from imagestore.cri.messages import (
    auth_message,
    container_value,
    filesystem_value,
    image_value,
    sandbox_message,
    spec_message,
    status_value,
    version_value,
)
from imagestore.cri.model import Condition, ImageDetails, ImageFilesystems, RuntimeStatus
from imagestore.errors import ImageServiceError, InvalidInputError, NotFoundError
from imagestore.protos.cri import api_pb2, api_pb2_grpc
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from imagestore.cri.model import ContainerImage, ImageSpec, SandboxMetadata, ServedImage, ServiceVersion
    from imagestore.registry.credentials.cri import AuthConfig
    from imagestore.registry.events import Observer

__all__ = ["Condition", "CriImageService", "RuntimeStatus"]

A = TypeVar("A")
C = TypeVar("C")
Q = TypeVar("Q")

#: The kubelet's time limit for calls except pulls.
CALL_SECONDS: Final = 120.0
#: Limit of a streamed list; about a million images.
_MOST_LIST_BYTES: Final = 256 * 1024 * 1024
#: The interface version that clients announce.
_KUBELET_INTERFACE_VERSION: Final = "0.1.0"
#: Message limit of every CRI client, in bytes.
MESSAGE_BYTES: Final = 16 * 1024 * 1024
#: A hundred years; grpc takes a deadline beyond 64 bits of nanoseconds for one that has passed.
_LONGEST_SECONDS: Final = 36525 * 24 * 3600.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # Go servers refuse a request whose authority is a socket's path.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # As the kubelet's client: reconnect soon after a long outage. The minimal back-off is not changed, since it also
    # is the time that a starting server has to answer.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
)


class _Channel:
    """Calls one server; thread-safe. Connects at the first call. The token ends every call without one of its own."""

    def __init__(self, endpoint: Endpoint, seconds: float, cancel: CancelToken | None) -> None:
        self.endpoint = endpoint.text
        self.seconds = seconds
        self.cancel = cancel or CancelToken()
        self.raw = grpc.insecure_channel(f"unix:{endpoint.path}", options=_OPTIONS)

    def call(
        self,
        method: grpc.UnaryUnaryMultiCallable[Q, A],
        request: Q,
        name: str,
        *,
        cancel: CancelToken | None = None,
        has_limit: bool = True,
    ) -> A:
        """Call a method of a stub on ``raw`` and wait for the answer; its name is for error texts.

        Raises:
            ImageStoreError: the server's error, or it can't be reached.
        """
        token = cancel or self.cancel
        token.check()
        limits = (self.seconds if has_limit else None, token.remaining_seconds())
        left = min((each for each in limits if each is not None), default=None)
        answer = self._answer(self.begin(method.future, request, name, seconds=left), name, token)
        if answer is None:
            # The caller's reason takes precedence over the server's status. Its error must not keep the call: grpc's
            # thread may hold the lock of a cancelled call when the program ends, and freeing the call would block.
            token.check()
            raise ImageServiceError(f"{self.endpoint}: {name}: the call was cancelled")
        return answer

    def _answer(self, call: grpc.Future[A], name: str, token: CancelToken) -> A | None:
        """Wait for a call; None if the token ended it."""

        def _cancel_call() -> None:
            call.cancel()

        try:
            with token.on_cancel(_cancel_call):
                return call.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            if _has_ended(token):
                # The error is the call itself: with its traceback it would refer to itself, through our local names.
                error.with_traceback(None)
                return None
            status = error if isinstance(error, grpc.RpcError) else call
            raise error_of(status, endpoint=self.endpoint, method=name) from error

    def begin(self, method: Callable[..., C], request: Q, name: str, *, seconds: float | None) -> C:
        """Send a request and return the running call.

        Raises:
            ImageServiceError: this client is closed.
        """
        try:
            return method(request, timeout=None if seconds is None else min(seconds, _LONGEST_SECONDS))
        except ValueError as error:  # raised by grpc for a closed channel
            raise ImageServiceError(f"{self.endpoint}: {name}: this client was closed") from error


class CriImageService:
    """Images by (reference, runtime handler) behind a CRI endpoint; connects at the first call; thread-safe.

    Args:
        endpoint: of the runtime service, and of the image service unless image_endpoint is given.
        image_endpoint: of the image service.
        timeout_seconds: limit of each call except pulls, which run until their token ends them.
        cancel: ends every call without a token of its own.

    Raises:
        InvalidInputError: an endpoint is invalid.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        image_endpoint: str = "",
        timeout_seconds: float = CALL_SECONDS,
        cancel: CancelToken | None = None,
    ) -> None:
        runtime, images = Endpoint.parse(endpoint), Endpoint.parse(image_endpoint or endpoint)
        self._runtime_channel = _Channel(runtime, timeout_seconds, cancel)
        self._image_channel = self._runtime_channel if images == runtime else _Channel(images, timeout_seconds, cancel)
        self._runtime = api_pb2_grpc.RuntimeServiceStub(self._runtime_channel.raw)
        self._images = api_pb2_grpc.ImageServiceStub(self._image_channel.raw)
        # A server without StreamImages doesn't gain it while we are connected; concurrent writers write the same value.
        self._has_streams = True

    @property
    def endpoint(self) -> str:
        """The image service's endpoint."""
        return self._image_channel.endpoint

    def version(self) -> ServiceVersion:
        """See ImageService."""
        request = api_pb2.VersionRequest(version=_KUBELET_INTERFACE_VERSION)
        answer = self._runtime_channel.call(self._runtime.Version, request, "Version")
        return version_value(answer, self._runtime_channel.endpoint)

    def runtime_status(self) -> RuntimeStatus:
        """Readiness, handlers and further information of the runtime (a verbose ``Status``).

        Raises:
            ImageStoreError: the call failed.
        """
        request = api_pb2.StatusRequest(verbose=True)
        answer = self._runtime_channel.call(self._runtime.Status, request, "Status")
        return status_value(answer)

    def list(self, spec: ImageSpec | None = None) -> Sequence[ServedImage]:
        """See ImageService. StreamImages is used if the server has it, since that has no size limit."""
        selected = api_pb2.ImageFilter(image=spec_message(spec)) if spec is not None else None
        messages = self._stream(selected) if self._has_streams else None
        if messages is None:
            request = api_pb2.ListImagesRequest(filter=selected)
            answer = self._image_channel.call(self._images.ListImages, request, "ListImages")
            messages = list(answer.images)
        return [image_value(message, self.endpoint, needs_size=False) for message in messages]

    def status(self, spec: ImageSpec) -> ServedImage | None:
        """See ImageService."""
        found = self._status(spec, is_verbose=False)
        return found.image if found is not None else None

    def inspect(self, spec: ImageSpec) -> ImageDetails | None:
        """See ImageService."""
        return self._status(spec, is_verbose=True)

    def pull(
        self,
        spec: ImageSpec,
        *,
        auth: AuthConfig | None = None,
        sandbox: SandboxMetadata | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> str:
        """See ImageService. CRI doesn't report a pull's progress."""
        request = api_pb2.PullImageRequest(
            image=spec_message(spec),
            auth=auth_message(auth) if auth is not None else None,
            sandbox_config=sandbox_message(sandbox) if sandbox is not None else None,
        )
        answer = self._image_channel.call(self._images.PullImage, request, "PullImage", cancel=cancel, has_limit=False)
        if not answer.image_ref:
            raise ImageServiceError(f"{self.endpoint}: pull of {spec.image!r}: expected an image id, got none")
        return answer.image_ref

    def remove(self, spec: ImageSpec) -> None:
        """See ImageService. An empty name is refused: with a single image, containerd would remove that."""
        if not spec.image:
            raise InvalidInputError("RemoveImage: expected a reference or an image id, got none")
        request = api_pb2.RemoveImageRequest(image=spec_message(spec))
        self._image_channel.call(self._images.RemoveImage, request, "RemoveImage")

    def filesystems(self) -> ImageFilesystems:
        """See ImageService."""
        answer = self._image_channel.call(self._images.ImageFsInfo, api_pb2.ImageFsInfoRequest(), "ImageFsInfo")
        return ImageFilesystems(
            tuple(filesystem_value(each) for each in answer.image_filesystems),
            tuple(filesystem_value(each) for each in answer.container_filesystems),
        )

    def containers(self) -> Sequence[ContainerImage]:
        """See ImageService. Reads each container's mounts too: images may be mounted as volumes."""
        answer = self._runtime_channel.call(
            self._runtime.ListContainers, api_pb2.ListContainersRequest(), "ListContainers"
        )
        return [container_value(each, self._container_status(each.id)) for each in answer.containers]

    def close(self) -> None:
        """See ImageService."""
        self._runtime_channel.raw.close()
        if self._image_channel is not self._runtime_channel:
            self._image_channel.raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()

    def _stream(self, selected: api_pb2.ImageFilter | None) -> Sequence[api_pb2.Image] | None:
        """The whole list, or None if the server has no StreamImages; an interrupted stream is an error."""
        cancel = self._image_channel.cancel
        cancel.check()
        images = self._streamed(api_pb2.StreamImagesRequest(filter=selected), cancel)
        cancel.check()  # here, since its error must not keep the call; see _Channel.call
        return images

    def _streamed(self, request: api_pb2.StreamImagesRequest, cancel: CancelToken) -> Sequence[api_pb2.Image] | None:
        """The images of a stream; None if the token ended it, or the server has no streams."""
        channel = self._image_channel
        parts = channel.begin(self._images.StreamImages, request, "StreamImages", seconds=channel.seconds)

        def _cancel_call() -> None:
            parts.cancel()

        try:
            with cancel.on_cancel(_cancel_call):
                return _gathered(parts, self.endpoint)
        except grpc.RpcError as error:
            if _has_ended(cancel):
                error.with_traceback(None)  # as in _Channel._answer
                return None
            if not is_unimplemented(error):
                raise error_of(error, endpoint=self.endpoint, method="StreamImages") from error
            self._has_streams = False
            return None

    def _status(self, spec: ImageSpec, *, is_verbose: bool) -> ImageDetails | None:
        request = api_pb2.ImageStatusRequest(image=spec_message(spec), verbose=is_verbose)
        answer = self._image_channel.call(self._images.ImageStatus, request, "ImageStatus")
        if not answer.HasField("image"):
            return None
        return ImageDetails(image_value(answer.image, self.endpoint), dict(answer.info))

    def _container_status(self, container_id: str) -> api_pb2.ContainerStatus | None:
        """None if the container was removed since it was listed."""
        request = api_pb2.ContainerStatusRequest(container_id=container_id)
        try:
            answer = self._runtime_channel.call(self._runtime.ContainerStatus, request, "ContainerStatus")
        except NotFoundError:
            return None
        return answer.status


def _has_ended(token: CancelToken) -> bool:
    return token.is_cancelled or token.remaining_seconds() == 0


def _gathered(parts: Iterable[api_pb2.StreamImagesResponse], endpoint: str) -> Sequence[api_pb2.Image]:
    found: list[api_pb2.Image] = []
    size = 0
    for part in parts:
        size += part.ByteSize()
        if size > _MOST_LIST_BYTES:
            raise ImageServiceError(f"{endpoint}: StreamImages: expected at most {_MOST_LIST_BYTES} bytes of images")
        found += part.images
    return found
