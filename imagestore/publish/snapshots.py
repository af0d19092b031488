"""Where layers are unpacked: a port of four methods, which containerd's snapshotters and a plain folder implement.

Layers stand on each other; what a stack of them is called is its chain id (image-spec, config.md, "Layer ChainID").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from imagestore.oci import Descriptor, Digest


@dataclass(frozen=True, slots=True)
class SnapshotLayer:
    """A layer to unpack: its blob in the store, and the digest of the tar in it."""

    blob: Descriptor
    diff_id: Digest


class SnapshotTarget(Protocol):
    """Keeps unpacked layers by chain id."""

    def has(self, chain_id: str) -> bool:
        """Whether this chain is there, and stays while the work that asked goes on."""

    def apply(self, parent: str, chain_id: str, layer: SnapshotLayer) -> None:
        """Unpack a layer on top of a chain that is there (empty: on nothing), as the chain ``chain_id``.

        Doing it twice, also at the same time, is doing it once. Nothing is left of one that failed.

        Raises:
            IntegrityError: the blob, or what is in it, isn't what its digests say.
            ContentNotFoundError: the store doesn't have the blob.
        """

    def remove(self, chain_id: str) -> None:
        """Remove a chain on which no other stands; it need not exist."""

    def close(self) -> None:
        """Give back what is held open."""
