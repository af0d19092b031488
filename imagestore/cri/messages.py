"""CRI's messages as the port's values, and back. A peer's answer is checked before it counts.

Clients of CRI refuse an image without an id, a status with the size 0, and a version with an empty member: a server
that answers such a thing is broken, and taking it for an image would end in a removal or a pull of the wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.cri._proto import api_pb2
from imagestore.cri.model import (
    ContainerImage,
    FilesystemUsage,
    ImageSpec,
    SandboxMetadata,
    ServedImage,
    ServiceVersion,
)
from imagestore.errors import ImageServiceError, InvalidInputError
from imagestore.util.text import is_utf8

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.registry.credentials.cri import AuthConfig


# A path is a text of the system, at most so long.
_MOST_NAME: Final = 4096


def spec_message(spec: ImageSpec) -> api_pb2.ImageSpec:
    """The port's value as a message.

    Raises:
        InvalidInputError: a text is no text (bytes of the command line that aren't UTF-8, half a pair in JSON).
    """
    for what, text in (("image", spec.image), ("runtime handler", spec.runtime_handler)):
        _refuse_no_text(f"{what} {text!r}", text)
    _refuse_no_text(f"image {spec.image!r}: annotations", *spec.annotations, *spec.annotations.values())
    _refuse_no_text(f"image {spec.image!r}: name in the pod", spec.user_specified_image)
    return api_pb2.ImageSpec(
        image=spec.image,
        annotations=dict(spec.annotations),
        user_specified_image=spec.user_specified_image,
        runtime_handler=spec.runtime_handler,
    )


def _refuse_no_text(what: str, *texts: str) -> None:
    # No encoding error may go on from here: it would carry the text, which may be a secret.
    if not all(map(is_utf8, texts)):
        raise InvalidInputError(f"{what}: expected UTF-8")


def auth_message(auth: AuthConfig) -> api_pb2.AuthConfig:
    """Credentials as a message; the only place where the client lays them open.

    Raises:
        InvalidInputError: one of them is no text.
    """
    secrets = (auth.password, auth.auth, auth.identity_token, auth.registry_token)
    _refuse_no_text("credentials", auth.username, auth.server_address, *(each.reveal() for each in secrets))
    return api_pb2.AuthConfig(
        username=auth.username,
        password=auth.password.reveal(),
        auth=auth.auth.reveal(),
        server_address=auth.server_address,
        identity_token=auth.identity_token.reveal(),
        registry_token=auth.registry_token.reveal(),
    )


def sandbox_message(sandbox: SandboxMetadata) -> api_pb2.PodSandboxConfig:
    """The pod a pull is for, as a message.

    Raises:
        InvalidInputError: one of its texts is no text.
    """
    names = (sandbox.name, sandbox.uid, sandbox.namespace)
    _refuse_no_text(f"pod {sandbox.name!r}", *names, *sandbox.annotations, *sandbox.annotations.values())
    return api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(name=sandbox.name, uid=sandbox.uid, namespace=sandbox.namespace),
        annotations=dict(sandbox.annotations),
    )


def image_value(message: api_pb2.Image, endpoint: str, *, needs_size: bool = True) -> ServedImage:
    """One image.

    Args:
        message: as the server sent it.
        endpoint: for errors.
        needs_size: as the kubelet asks of a status; of a list it doesn't, or one image would hide all others.

    Raises:
        ImageServiceError: no id, or no size.
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
    """Who answers.

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
    """What images use of one file system."""
    has_inodes = message.HasField("inodes_used")
    return FilesystemUsage(
        mountpoint=message.fs_id.mountpoint[:_MOST_NAME],
        timestamp_ns=message.timestamp,
        used_bytes=message.used_bytes.value,
        inodes_used=message.inodes_used.value if has_inodes else None,
    )


def container_value(message: api_pb2.Container, status: api_pb2.ContainerStatus | None) -> ContainerImage:
    """The image of a container.

    Args:
        message: from the list.
        status: of the container; None when it is gone meanwhile.
    """
    mounted = [mount.image.image for mount in status.mounts if mount.image.image] if status is not None else []
    # image_id exists since 1.30; before, image_ref was the id or a reference with a digest.
    return ContainerImage(
        container_id=message.id,
        image_id=message.image_id or message.image_ref,
        runtime_handler=message.image.runtime_handler or None,
        mounted_image_ids=tuple(mounted),
    )


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that must hold for the runtime to be ready, and why it doesn't."""

    name: str
    is_met: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """A verbose ``Status``.

    Attributes:
        conditions: RuntimeReady and NetworkReady at least.
        handlers: names of runtime handlers, the empty one for the default; none where the runtime doesn't tell.
        info: texts by key, most of them JSON.
    """

    conditions: tuple[Condition, ...]
    handlers: tuple[str, ...] = ()
    info: Mapping[str, str] = field(default_factory=dict, hash=False)


def status_value(message: api_pb2.StatusResponse) -> RuntimeStatus:
    """The message as a value."""
    return RuntimeStatus(
        tuple(Condition(each.type, each.status, each.reason, each.message) for each in message.status.conditions),
        tuple(each.name for each in message.runtime_handlers),
        dict(message.info),
    )
