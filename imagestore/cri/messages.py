"""CRI's messages as values, and back.

As other CRI clients do, values refuse an image without an id, a status with size 0, and a version with an empty member:
such an answer is broken, and using it could remove or pull the wrong image. Messages refuse texts that aren't UTF-8
(from the command line, or lone surrogates from JSON) with InvalidInputError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.cri.model import (
    Condition,
    ContainerImage,
    FilesystemUsage,
    ImageSpec,
    RuntimeStatus,
    SandboxMetadata,
    ServedImage,
    ServiceVersion,
)
from imagestore.errors import ImageServiceError, InvalidInputError
from imagestore.protos.cri import api_pb2
from imagestore.util.text import is_utf8

if TYPE_CHECKING:
    from imagestore.registry.credentials.cri import AuthConfig


# A path is a text of the system, at most so long.
_MOST_NAME: Final = 4096


def spec_message(spec: ImageSpec) -> api_pb2.ImageSpec:
    """``runtime.v1.ImageSpec``."""
    for what, text in (("image", spec.image), ("runtime handler", spec.runtime_handler)):
        _require_utf8(f"{what} {text!r}", text)
    _require_utf8(f"image {spec.image!r}: annotations", *spec.annotations, *spec.annotations.values())
    _require_utf8(f"image {spec.image!r}: name in the pod", spec.user_specified_image)
    return api_pb2.ImageSpec(
        image=spec.image,
        annotations=dict(spec.annotations),
        user_specified_image=spec.user_specified_image,
        runtime_handler=spec.runtime_handler,
    )


def _require_utf8(what: str, *texts: str) -> None:
    # protobuf's own error would contain the text, which may be a secret.
    if not all(map(is_utf8, texts)):
        raise InvalidInputError(f"{what}: expected UTF-8")


def auth_message(auth: AuthConfig) -> api_pb2.AuthConfig:
    """``runtime.v1.AuthConfig``; the only place where the client reveals credentials."""
    secrets = (auth.password, auth.auth, auth.identity_token, auth.registry_token)
    _require_utf8("credentials", auth.username, auth.server_address, *(each.reveal() for each in secrets))
    return api_pb2.AuthConfig(
        username=auth.username,
        password=auth.password.reveal(),
        auth=auth.auth.reveal(),
        server_address=auth.server_address,
        identity_token=auth.identity_token.reveal(),
        registry_token=auth.registry_token.reveal(),
    )


def sandbox_message(sandbox: SandboxMetadata) -> api_pb2.PodSandboxConfig:
    """The pod that a pull is for."""
    names = (sandbox.name, sandbox.uid, sandbox.namespace)
    _require_utf8(f"pod {sandbox.name!r}", *names, *sandbox.annotations, *sandbox.annotations.values())
    return api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(name=sandbox.name, uid=sandbox.uid, namespace=sandbox.namespace),
        annotations=dict(sandbox.annotations),
    )


def image_value(message: api_pb2.Image, endpoint: str, *, needs_size: bool = True) -> ServedImage:
    """One image. In a list the kubelet accepts the size 0, so that one image can't hide the others.

    Raises:
        ImageServiceError: no id, or no size where it is needed.
    """
    if not message.id or (needs_size and not message.size):
        name = message.id or next(iter(message.repo_tags), "") or message.spec.image
        raise ImageServiceError(f"{endpoint}: image {name!r}: expected an id and a size, got {message.size} bytes")
    spec = message.spec
    return ServedImage(
        id=message.id,
        repo_tags=tuple(message.repo_tags),
        repo_digests=tuple(sorted(message.repo_digests)),
        size=message.size,
        uid=message.uid.value if message.HasField("uid") else None,
        username=message.username,
        spec=ImageSpec(spec.image, spec.runtime_handler, dict(spec.annotations), spec.user_specified_image),
        is_pinned=message.pinned,
    )


def version_value(message: api_pb2.VersionResponse, endpoint: str) -> ServiceVersion:
    """Name and version of the server.

    Raises:
        ImageServiceError: a member is empty.
    """
    members = {
        "version": message.version,
        "runtime name": message.runtime_name,
        "runtime version": message.runtime_version,
        "API version": message.runtime_api_version,
    }
    missing = [name for name, text in members.items() if not text]
    if missing:
        raise ImageServiceError(f"{endpoint}: version: expected every member, got no {', '.join(missing)}")
    return ServiceVersion(message.runtime_name, message.runtime_version, message.runtime_api_version)


def filesystem_value(message: api_pb2.FilesystemUsage) -> FilesystemUsage:
    """Disk usage of images on one file system."""
    has_inodes = message.HasField("inodes_used")
    return FilesystemUsage(
        mountpoint=message.fs_id.mountpoint[:_MOST_NAME],
        timestamp_ns=message.timestamp,
        used_bytes=message.used_bytes.value,
        inodes_used=message.inodes_used.value if has_inodes else None,
    )


def container_value(message: api_pb2.Container, status: api_pb2.ContainerStatus | None) -> ContainerImage:
    """The image of a listed container; its status is None if it is gone."""
    mounted = [mount.image.image for mount in status.mounts if mount.image.image] if status is not None else []
    # image_id exists since 1.30; before, image_ref was the id or a reference with a digest.
    return ContainerImage(
        container_id=message.id,
        image_id=message.image_id or message.image_ref,
        runtime_handler=message.image.runtime_handler or None,
        mounted_image_ids=tuple(mounted),
    )


def status_value(message: api_pb2.StatusResponse) -> RuntimeStatus:
    """Readiness, handlers and info."""
    return RuntimeStatus(
        tuple(Condition(each.type, each.status, each.reason, each.message) for each in message.status.conditions),
        tuple(each.name for each in message.runtime_handlers),
        dict(message.info),
    )
