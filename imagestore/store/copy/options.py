"""What a copy takes along, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagestore.oci.descriptor import Descriptor


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What to copy.

    Attributes:
        runtime_handlers: whose manifests; empty means the default handler's. That of one goes alone, those of several
            go with their index.
        has_all_handlers: the manifests of every handler that the image has something for, with their index.
        platform: this platform's manifest alone, in text form; empty means the handlers'.
        has_all_platforms: every manifest that the source has, with their index.
        has_referrers: also what refers to them: signatures, bills of materials. A docker-archive can't carry it, and
            the store has it only where it was copied there with this option.
        image: which image of an archive; empty for its only one.
        name: what it is called in an archive; empty for the source's name.
        may_replace: move a name of the store that leads to other content.
        is_dry_run: only find out what would be sent.
    """

    runtime_handlers: tuple[str, ...] = ()
    has_all_handlers: bool = False
    platform: str = ""
    has_all_platforms: bool = False
    has_referrers: bool = False
    image: str = ""
    name: str = ""
    may_replace: bool = False
    is_dry_run: bool = False

    @property
    def keeps_index(self) -> bool:
        """Whether the index goes along; else one manifest goes alone."""
        return self.has_all_handlers or self.has_all_platforms or len(set(self.runtime_handlers)) > 1


@dataclass(frozen=True, slots=True)
class CopiedBlob:
    """One blob of a copy.

    Attributes:
        descriptor: of it.
        sent: bytes that went there; in a dry run, those that would.
        mounted_from: repository of the same registry that it was taken over from; empty if it was not.
    """

    descriptor: Descriptor
    sent: int
    mounted_from: str = ""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What came of a copy.

    Attributes:
        destination: where the image is now.
        target: the index or manifest that the destination leads to.
        platforms: those that were copied, in text form.
        left_out: platforms of the index that were not.
        blobs: all that was needed, each once; empty where the destination is the store.
        referrers: how many documents that refer to the image were copied.
        is_dry_run: nothing was written.
    """

    destination: str
    target: Descriptor
    platforms: tuple[str, ...]
    left_out: tuple[str, ...]
    blobs: tuple[CopiedBlob, ...] = ()
    referrers: int = 0
    is_dry_run: bool = False

    @property
    def sent(self) -> int:
        """Bytes of blobs that were sent, or would be."""
        return sum(blob.sent for blob in self.blobs)
