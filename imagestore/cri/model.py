"""CRI's messages about images as values: the language of image services."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """Which image (``runtime.v1.ImageSpec``).

    Attributes:
        image: reference, image id or the beginning of one, as the caller wrote it.
        runtime_handler: its runtime handler; empty means the service's default handler, or unspecified.
        annotations: free text that may help to choose among platforms.
        user_specified_image: the text of the pod spec, where it is known.
    """

    image: str
    runtime_handler: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    user_specified_image: str = ""


@dataclass(frozen=True, slots=True)
class ServedImage:
    """One image of one handler as a service lists it (``runtime.v1.Image``).

    Attributes:
        id: the image id, as a pull returns it.
        repo_tags: complete references with tags.
        repo_digests: complete references with digests, sorted.
        size: bytes, never 0.
        uid: the user of the image config when it is a number, else None.
        username: the user of the image config when it is a name, else empty.
        spec: how the image was requested, with the runtime handler.
        is_pinned: the caller should not collect it.
    """

    id: str
    repo_tags: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size: int
    uid: int | None = None
    username: str = ""
    spec: ImageSpec = field(default_factory=lambda: ImageSpec(""))
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class ImageDetails:
    """An image with what a verbose status adds: texts by key, most of them JSON."""

    image: ServedImage
    info: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class FilesystemUsage:
    """Disk usage of images on one file system (``runtime.v1.FilesystemUsage``).

    Attributes:
        mountpoint: a path on it.
        timestamp_ns: when this was read, nanoseconds since 1970.
        used_bytes: bytes that images use.
        inodes_used: inodes that images use; None if unknown.
    """

    mountpoint: str
    timestamp_ns: int
    used_bytes: int
    inodes_used: int | None = None


@dataclass(frozen=True, slots=True)
class ImageFilesystems:
    """The file systems of images, and those of containers if they are others."""

    image_filesystems: tuple[FilesystemUsage, ...]
    container_filesystems: tuple[FilesystemUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceVersion:
    """Name and version of the runtime, and version of its API."""

    name: str
    version: str
    api_version: str


@dataclass(frozen=True, slots=True)
class SandboxMetadata:
    """The pod that a pull is for."""

    name: str = ""
    uid: str = ""
    namespace: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """The image of a container, running or dead.

    Attributes:
        container_id: the container.
        image_id: the image's id.
        runtime_handler: the handler it was pulled for; None if unknown.
        mounted_image_ids: ids of images mounted as volumes.
    """

    container_id: str
    image_id: str
    runtime_handler: str | None = None
    mounted_image_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of the runtime's readiness, with the reason if it isn't met."""

    name: str
    is_met: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """A verbose ``Status``.

    Attributes:
        conditions: RuntimeReady and NetworkReady at least.
        handlers: names of runtime handlers, the empty one for the default; none if the runtime doesn't report them.
        info: texts by key, most of them JSON.
    """

    conditions: tuple[Condition, ...]
    handlers: tuple[str, ...] = ()
    info: Mapping[str, str] = field(default_factory=dict, hash=False)
