"""What containerd says of itself and its containers, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import ServiceUnavailableError, StoreFullError
from imagestore.util import rpc

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from imagestore.errors import ImageStoreError

#: ENOSPC and EDQUOT, as Go spells them; containerd has no status of its own for them.
_FULL: Final = ("no space left on device", "disk quota exceeded")


@dataclass(frozen=True, slots=True)
class Plugins:
    """What containerd has loaded.

    Attributes:
        content_root: folder of the local content store; None if there is none, or it doesn't say.
        snapshotters: names of those that work.
        types: of all plugins that work.
    """

    content_root: Path | None
    snapshotters: frozenset[str]
    types: frozenset[str]


@dataclass(frozen=True, slots=True)
class Container:
    """A container of containerd; ``image`` is the name of the record that it was made from, or an id."""

    id: str
    image: str
    labels: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Usage:
    """What CRI says of one image file system; bytes and inodes."""

    mountpoint: str
    used_bytes: int
    inodes_used: int
    timestamp: int


def error_of(status: object, *, endpoint: str, method: str) -> ImageStoreError:
    """containerd's error; as rpc.error_of(), and StoreFullError if its disk is full."""
    error = rpc.error_of(status, endpoint=endpoint, method=method)
    if not isinstance(error, ServiceUnavailableError) and any(each in str(error).lower() for each in _FULL):
        return StoreFullError(str(error), hint="free space where containerd has its root, or add some")
    return error
