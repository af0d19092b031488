"""The numbers of the file system that holds images."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import ImageCollectionError, InvalidInputError

if TYPE_CHECKING:
    from imagestore.node.image_service import ImageService


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """One file system, bytes.

    Attributes:
        capacity_bytes: its size; 0 when it can't be told.
        available_bytes: free for unprivileged users; more than the capacity counts as the capacity.
    """

    capacity_bytes: int
    available_bytes: int

    def __post_init__(self) -> None:
        if self.capacity_bytes < 0 or self.available_bytes < 0:
            raise InvalidInputError("disk usage: expected no negative number")
        if self.available_bytes > self.capacity_bytes:
            object.__setattr__(self, "available_bytes", self.capacity_bytes)

    @property
    def usage_percent(self) -> int:
        """Whole percents; a capacity of 0 counts as full."""
        return 100 - (self.available_bytes * 100 // self.capacity_bytes if self.capacity_bytes else 0)


def disk_of_images(service: ImageService) -> DiskUsage:
    """The disk below the first image file system that a service names.

    Raises:
        ImageCollectionError: the service names none, or it isn't on this machine.
    """
    found = service.filesystems().image_filesystems
    if not found:
        raise ImageCollectionError("image file system: the image service names none")
    try:
        numbers = os.statvfs(found[0].mountpoint)
    except (OSError, ValueError) as error:
        raise ImageCollectionError(f"image file system {found[0].mountpoint}: can't be read: {error}") from error
    return DiskUsage(numbers.f_blocks * numbers.f_frsize, numbers.f_bavail * numbers.f_frsize)
