"""What a copy gets and gives: the places of an image (registry, store, OCI layout, archive), options, report."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError
from imagestore.oci.reference import Reference
from imagestore.util.logins import reference_without_login

if TYPE_CHECKING:
    from typing import Self

    from imagestore.oci.descriptor import Descriptor
    from imagestore.store.archive.contents import ArchiveFormat

_SKOPEO_REGISTRY: Final = "docker://"
#: skopeo's names for what this tool doesn't read or write; without this they would be taken for repositories.
_UNKNOWN: Final = ("containers-storage:", "docker-daemon:", "dir:", "ostree:", "sif:")


class LocationKind(enum.Enum):
    """Kinds of places; the values are what stands before the colon, as in skopeo."""

    REGISTRY = ""
    STORE = "store"
    OCI_FOLDER = "oci"
    OCI_ARCHIVE = "oci-archive"
    DOCKER_ARCHIVE = "docker-archive"


@dataclass(frozen=True, slots=True)
class ImageLocation:
    """One place of an image.

    Attributes:
        kind: of the place.
        name: a reference, or in the store also an image id, or the path of an archive or a folder.

    >>> str(ImageLocation.parse("oci:layout")), ImageLocation.parse("python:3").kind
    ('oci:layout', <LocationKind.REGISTRY: ''>)
    """

    kind: LocationKind
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a place: ``store:NAME``, ``oci:FOLDER``, ``oci-archive:FILE``, ``docker-archive:FILE``, or a reference.

        A reference means its registry; a repository that is called as one of the kinds needs its host in front.

        Raises:
            InvalidReferenceError: it is none of these, and no reference.
            InvalidInputError: nothing stands behind the colon, or the kind is one of skopeo's that is unknown here.
        """
        for kind in LocationKind:
            if kind is not LocationKind.REGISTRY and text.startswith(f"{kind.value}:"):
                name = text.removeprefix(f"{kind.value}:")
                if not name or "\0" in name:
                    what = "an image" if kind is LocationKind.STORE else "a path"
                    raise InvalidInputError(f"{text!r}: expected {what} behind {kind.value}:")
                return cls(kind, name)
        known, shown = ", ".join(f"{kind.value}:" for kind in LocationKind if kind.value), reference_without_login(text)
        if text.startswith(_UNKNOWN):
            raise InvalidInputError(
                f"{shown!r}: this kind of place is not known", hint=f"known are {known} and references"
            )
        if text.startswith(_SKOPEO_REGISTRY):
            raise InvalidInputError(
                f"{shown!r}: a registry's image is named by its reference alone",
                hint=f"leave out {_SKOPEO_REGISTRY}: {shown.removeprefix(_SKOPEO_REGISTRY)}",
            )
        Reference.parse(text)
        return cls(LocationKind.REGISTRY, text)

    @property
    def archive_format(self) -> ArchiveFormat:
        """The form of an archive or a folder."""
        # Readers of archives are more than a command needs to know its options.
        from imagestore.store.archive.contents import ArchiveFormat

        return ArchiveFormat(self.kind.value)

    @property
    def is_archive(self) -> bool:
        """Whether it is an archive or a layout's folder."""
        return self.kind not in {LocationKind.REGISTRY, LocationKind.STORE}

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}" if self.kind.value else self.name


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What to copy.

    Attributes:
        runtime_handlers: whose manifests. That of one goes alone, those of several go with their index. If no handler
            and no platform is named, a copy from one registry into another takes all, as crane and regctl do, and any
            other the default handler's.
        all_handlers: the manifests of every handler that the image has something for, with their index.
        platform: this platform's manifest alone, in text form; empty means the handlers'.
        all_platforms: every manifest that the source has, with their index.
        referrers: also what refers to them: signatures, bills of materials; between registries also what cosign keeps
            under tags (``sha256-HEX.sig``, ``.att``, ``.sbom``). A docker-archive can't carry it, and
            the store has it only where it was copied there with this option.
        image: which image of an archive; empty for its only one.
        name: what it is called in an archive; empty for the source's name.
        replace: move a name of the store that leads to other content.
        dry_run: only find out what would be sent.
        with_foreign_layers: into a registry also layers that have an address of their own, where they stay by default.
    """

    runtime_handlers: tuple[str, ...] = ()
    all_handlers: bool = False
    platform: str = ""
    all_platforms: bool = False
    referrers: bool = False
    image: str = ""
    name: str = ""
    replace: bool = False
    dry_run: bool = False
    with_foreign_layers: bool = False

    @property
    def keeps_index(self) -> bool:
        """Whether the index goes along; else one manifest goes alone."""
        return self.all_handlers or self.all_platforms or len(set(self.runtime_handlers)) > 1

    def between(self, origin: ImageLocation, destination: ImageLocation) -> CopyOptions:
        """What they mean for these places."""
        is_open = not (self.runtime_handlers or self.all_handlers or self.platform)
        is_between_registries = origin.kind is destination.kind is LocationKind.REGISTRY
        return replace(self, all_platforms=True) if is_open and is_between_registries else self


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
