"""One port for whatever serves images on a node: the embedded store, a CRI endpoint, a Docker Engine.

The words are CRI's (``runtime.v1.ImageService``), the values are plain dataclasses, so that nobody who talks to an
image service has to load gRPC.
"""

from imagestore.image_service.api import ImageService
from imagestore.image_service.model import (
    ContainerImage,
    FilesystemUsage,
    ImageDetails,
    ImageFilesystems,
    ImageSpec,
    SandboxMetadata,
    ServedImage,
    ServiceVersion,
)

__all__ = [
    "ContainerImage",
    "FilesystemUsage",
    "ImageDetails",
    "ImageFilesystems",
    "ImageService",
    "ImageSpec",
    "SandboxMetadata",
    "ServedImage",
    "ServiceVersion",
]
