"""A client for any CRI endpoint, ours or a container runtime's; where CRI leaves a choice, it does as the kubelet's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import grpc

from imagestore.cri.errors import error_of
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
from imagestore.util.endpoint import Endpoint
from imagestore.util.grpc_channel import GrpcChannel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from imagestore.cri.model import ContainerImage, ImageSpec, SandboxMetadata, ServedImage, ServiceVersion
    from imagestore.events import Observer
    from imagestore.registry.credentials.cri import AuthConfig

__all__ = ["Condition", "CriImageService", "RuntimeStatus"]

#: The kubelet's time limit for calls except pulls.
CALL_SECONDS: Final = 120.0
#: Limit of a streamed list; about a million images.
_MOST_LIST_BYTES: Final = 256 * 1024 * 1024
#: The interface version that clients announce.
_KUBELET_INTERFACE_VERSION: Final = "0.1.0"
_UNIMPLEMENTED: Final[int] = grpc.StatusCode.UNIMPLEMENTED.value[0]


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

        def _channel(to: Endpoint) -> GrpcChannel:
            return GrpcChannel(to, timeout_seconds, cancel=cancel, error_of=error_of)

        self._runtime_channel = _channel(runtime)
        self._image_channel = self._runtime_channel if images == runtime else _channel(images)
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
        self._runtime_channel.close()
        if self._image_channel is not self._runtime_channel:
            self._image_channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()

    def _stream(self, selected: api_pb2.ImageFilter | None) -> Sequence[api_pb2.Image] | None:
        """The whole list, or None if the server has no StreamImages; an interrupted stream is an error."""
        request = api_pb2.StreamImagesRequest(filter=selected)
        try:
            with contextlib.closing(
                self._image_channel.stream(self._images.StreamImages, request, "StreamImages")
            ) as parts:
                return _gathered(parts, self.endpoint)
        except ImageServiceError as error:
            if error.status != _UNIMPLEMENTED:
                raise
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


def _gathered(parts: Iterable[api_pb2.StreamImagesResponse], endpoint: str) -> Sequence[api_pb2.Image]:
    found: list[api_pb2.Image] = []
    size = 0
    for part in parts:
        size += part.ByteSize()
        if size > _MOST_LIST_BYTES:
            raise ImageServiceError(f"{endpoint}: StreamImages: expected at most {_MOST_LIST_BYTES} bytes of images")
        found += part.images
    return found
