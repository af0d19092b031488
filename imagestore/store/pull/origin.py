"""Where a pull's bytes come from: a registry, or an archive that is imported. Both answer the same two questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType
    from typing import Self

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.reference import Reference
    from imagestore.util.cancel import CancelToken


class Transfer(Protocol):
    """The bytes of a blob from ``start`` to its end; close always."""

    @property
    def start(self) -> int:
        """Offset of the first byte: as asked, or 0 when the origin can't resume."""

    @property
    def hosts(self) -> Collection[str]:
        """Which hosts the bytes came from; empty when it was none."""

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer, often fewer than fit; 0 only at the end."""

    def __enter__(self) -> Self:
        """Close at the end of the block."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Close."""


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
        """A blob from ``offset`` on, not from ``avoid`` if there is a choice; whoever keeps the bytes verifies them.

        Raises:
            RegistryError, ContentNotFoundError: it can't be had.
        """
