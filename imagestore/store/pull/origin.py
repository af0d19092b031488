"""Where a pull's bytes come from: a registry, or an archive that is imported. Both answer the same two questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.reference import Reference
    from imagestore.registry.blobs import Transfer
    from imagestore.util.cancel import CancelToken


class Origin(Protocol):
    """Gives documents and blobs of a reference."""

    def document(self, reference: Reference, descriptor: Descriptor, *, cancel: CancelToken) -> bytes:
        """An index, a manifest or a config whole, verified against size and digest.

        Raises:
            RegistryError, ContentNotFoundError: it can't be had.
            IntegrityError: it isn't what the descriptor says.
        """

    def blob(
        self,
        reference: Reference,
        descriptor: Descriptor,
        *,
        offset: int,
        avoid: Collection[str],
        cancel: CancelToken,
    ) -> Transfer:
        """A blob from ``offset`` on, not from ``avoid`` if there is a choice; the caller verifies the bytes.

        Raises:
            RegistryError, ContentNotFoundError: it can't be had.
        """
