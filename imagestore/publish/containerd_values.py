"""What containerd says of itself and its containers, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


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
