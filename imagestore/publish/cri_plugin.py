"""containerd's CRI plugin: what it knows of images, which containers are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import imagestore.protos.cri.api_pb2 as cri_pb2
import imagestore.protos.cri.api_pb2_grpc as cri_grpc
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from imagestore.util.grpc_channel import GrpcChannel


@dataclass(frozen=True, slots=True)
class Usage:
    """What CRI says of one image file system; bytes and inodes."""

    mountpoint: str
    used_bytes: int
    inodes_used: int
    timestamp: int


class CriPlugin:
    """Its image service; errors as those of Containerd.

    Args:
        channel: to containerd.
    """

    def __init__(self, channel: GrpcChannel) -> None:
        self._channel = channel
        self._images = cri_grpc.ImageServiceStub(channel.raw)

    def image_id(self, name: str) -> str:
        """The id that a name or an id leads to; empty if it isn't known."""
        request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=name))
        return self._channel.call(self._images.ImageStatus, request, "ImageStatus").image.id

    def ids(self) -> dict[str, str]:
        """The id of each name that is known, and of each id, in one call."""
        answer = self._channel.call(self._images.ListImages, cri_pb2.ListImagesRequest(), "ListImages")
        found = {}
        for image in answer.images:
            for name in (image.id, *image.repo_tags, *image.repo_digests):
                found[name] = image.id
        return found

    def image_filesystems(self, *, seconds: float) -> list[Usage]:
        """The file systems of images; the call ends after so many seconds."""
        request = cri_pb2.ImageFsInfoRequest()
        answer = self._channel.call(self._images.ImageFsInfo, request, "ImageFsInfo", cancel=CancelToken(seconds))
        return [
            Usage(each.fs_id.mountpoint, each.used_bytes.value, each.inodes_used.value, each.timestamp)
            for each in answer.image_filesystems
        ]
