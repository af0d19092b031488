"""An image service in memory that notes what it is asked, and a clock that stands still."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from imagestore.cri import (
    ContainerImage,
    FilesystemUsage,
    ImageDetails,
    ImageFilesystems,
    ImageSpec,
    ServedImage,
    ServiceVersion,
)
from imagestore.util.durations import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore import CancelToken
    from imagestore.cri import SandboxMetadata
    from imagestore.errors import ImageStoreError
    from imagestore.events import Observer
    from imagestore.registry import AuthConfig


class FakeClock:
    """Nanoseconds that only pass() moves on."""

    def __init__(self) -> None:
        self.now = 1_000_000 * NANOSECONDS

    def __call__(self) -> int:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += round(seconds * NANOSECONDS)


@dataclass
class FakeService:
    """Images are what the test puts in; pulls bring in an image with the id ``id-of-<text>[,<handler>]``."""

    images: list[ServedImage] = field(default_factory=list)
    in_use: list[ContainerImage] = field(default_factory=list)
    status_error: ImageStoreError | None = None
    list_error: ImageStoreError | None = None
    pull_errors: list[ImageStoreError] = field(default_factory=list)
    remove_errors: dict[str, ImageStoreError] = field(default_factory=dict)
    on_pull: Callable[[], None] = lambda: None
    asked: list[ImageSpec] = field(default_factory=list)
    pulled: list[tuple[ImageSpec, AuthConfig | None]] = field(default_factory=list)
    removed: list[ImageSpec] = field(default_factory=list)
    sandboxes: list[SandboxMetadata | None] = field(default_factory=list)

    def version(self) -> ServiceVersion:
        return ServiceVersion("fake", "1.0.0", "v1")

    def list(self, spec: ImageSpec | None = None) -> Sequence[ServedImage]:
        if self.list_error is not None:
            raise self.list_error
        return tuple(self.images)

    def status(self, spec: ImageSpec) -> ServedImage | None:
        self.asked.append(spec)
        if self.status_error is not None:
            raise self.status_error
        wanted = (spec.image, spec.runtime_handler)
        return next((each for each in self.images if (each.spec.image, each.spec.runtime_handler) == wanted), None)

    def inspect(self, spec: ImageSpec) -> ImageDetails | None:
        found = self.status(spec)
        return None if found is None else ImageDetails(found)

    def pull(
        self,
        spec: ImageSpec,
        *,
        auth: AuthConfig | None = None,
        sandbox: SandboxMetadata | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> str:
        self.pulled.append((spec, auth))
        self.sandboxes.append(sandbox)
        self.on_pull()
        if self.pull_errors:
            raise self.pull_errors.pop(0)
        suffix = f",{spec.runtime_handler}" if spec.runtime_handler else ""
        image = ServedImage(f"id-of-{spec.image}{suffix}", (spec.image,), (), 1234, spec=replace(spec, annotations={}))
        self.images.append(image)
        return image.id

    def remove(self, spec: ImageSpec) -> None:
        self.removed.append(spec)
        if spec.image in self.remove_errors:
            raise self.remove_errors[spec.image]
        self.images = [
            each
            for each in self.images
            if each.id != spec.image or (spec.runtime_handler and each.spec.runtime_handler != spec.runtime_handler)
        ]

    def filesystems(self) -> ImageFilesystems:
        return ImageFilesystems((FilesystemUsage("/", 1, 0),))

    def containers(self) -> Sequence[ContainerImage]:
        return tuple(self.in_use)

    def close(self) -> None:
        self.images = []


def image(image_id: str, size: int = 1024, *, handler: str = "", pinned: bool = False) -> ServedImage:
    """An image under its id alone."""
    return ServedImage(image_id, (), (), size, spec=ImageSpec(image_id, handler), is_pinned=pinned)
