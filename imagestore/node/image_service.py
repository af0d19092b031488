"""The port: what a node agent asks of an image service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.cri.model import (
        ContainerImage,
        ImageDetails,
        ImageFilesystems,
        ImageSpec,
        SandboxMetadata,
        ServedImage,
        ServiceVersion,
    )
    from imagestore.registry.credentials.cri import AuthConfig
    from imagestore.registry.events import Observer
    from imagestore.util.cancel import CancelToken


class ImageService(Protocol):
    """Images by (reference, runtime handler), wherever they are kept. Calls block; any thread may call.

    Every method raises ImageStoreError and its kinds only: ServiceUnavailableError where the service can't be reached,
    RegistryUnavailableError where the service says that of a registry, OperationCancelledError or DeadlineExceededError
    where the caller's token ends the call.
    """

    def version(self) -> ServiceVersion:
        """Who answers; the quickest way to see that somebody does."""

    def list(self, spec: ImageSpec | None = None) -> Sequence[ServedImage]:
        """Images present now, one entry for each (image id, handler).

        Args:
            spec: only this image and, where it names one, this handler's; an empty image means all.
        """

    def status(self, spec: ImageSpec) -> ServedImage | None:
        """One image, or None when it is absent: absence is no error."""

    def inspect(self, spec: ImageSpec) -> ImageDetails | None:
        """One image with all the service tells of it, or None when it is absent."""

    def pull(
        self,
        spec: ImageSpec,
        *,
        auth: AuthConfig | None = None,
        sandbox: SandboxMetadata | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> str:
        """Bring an image in, for the handler that the spec names; return its id.

        Args:
            spec: which image.
            auth: who pulls; None leaves it to the service.
            sandbox: the pod it is for.
            observer: hears of progress where the service tells of it.
            cancel: ends the call.

        Raises:
            UnknownRuntimeHandlerError, RegistryUnavailableError, ImageDeniedError and others: as the service fails.
        """

    def remove(self, spec: ImageSpec) -> None:
        """Remove an image; removing what isn't there is no error."""

    def filesystems(self) -> ImageFilesystems:
        """What images use, per file system."""

    def containers(self) -> Sequence[ContainerImage]:
        """Images that containers, dead ones too, were made from."""

    def close(self) -> None:
        """Give connections back."""
