"""The protocol of an image service, in CRI's terms: implemented for CRI, the embedded store and Docker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.cri import (
        ContainerImage,
        ImageDetails,
        ImageFilesystems,
        ImageSpec,
        SandboxMetadata,
        ServedImage,
        ServiceVersion,
    )
    from imagestore.events import Observer
    from imagestore.registry import AuthConfig
    from imagestore.util.cancel import CancelToken


class ImageService(Protocol):
    """Images by (reference, runtime handler). Calls block; any thread may call.

    Every method raises only ImageStoreError and its subclasses: ServiceUnavailableError if the service can't be
    reached, RegistryUnavailableError if the service reports that of a registry, OperationCancelledError or
    DeadlineExceededError if the caller's token ends the call.
    """

    def version(self) -> ServiceVersion:
        """Name and version of the service; a quick check that it answers."""

    def list(self, spec: ImageSpec | None = None) -> Sequence[ServedImage]:
        """The present images, one entry for each (image id, handler).

        Args:
            spec: only this image and, if it names one, this handler; an empty image means all.
        """

    def status(self, spec: ImageSpec) -> ServedImage | None:
        """One image, or None if it is absent."""

    def inspect(self, spec: ImageSpec) -> ImageDetails | None:
        """One image with everything the service reports about it, or None if it is absent."""

    def pull(
        self,
        spec: ImageSpec,
        *,
        auth: AuthConfig | None = None,
        sandbox: SandboxMetadata | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> str:
        """Pull an image for the handler that the spec names; return its id.

        Args:
            spec: image and handler.
            auth: credentials; None leaves them to the service.
            sandbox: the pod it is for.
            observer: receives progress if the service reports it.
            cancel: ends the call.

        Raises:
            UnknownRuntimeHandlerError, RegistryUnavailableError, ImageDeniedError and others: the service's error.
        """

    def remove(self, spec: ImageSpec) -> None:
        """Remove an image; an absent image is no error."""

    def filesystems(self) -> ImageFilesystems:
        """Disk usage of images, per file system."""

    def containers(self) -> Sequence[ContainerImage]:
        """The images of all containers, dead ones too."""

    def close(self) -> None:
        """Close connections."""
