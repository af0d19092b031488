"""Where an image is: in a registry, in the store, in an OCI layout or an archive; one text names it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError
from imagestore.oci.reference import Reference
from imagestore.store.archive.contents import ArchiveFormat

if TYPE_CHECKING:
    from typing import Self

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
        known = ", ".join(f"{kind.value}:" for kind in LocationKind if kind.value)
        if text.startswith(_UNKNOWN):
            raise InvalidInputError(
                f"{text!r}: this kind of place is not known", hint=f"known are {known} and references"
            )
        if text.startswith(_SKOPEO_REGISTRY):
            raise InvalidInputError(
                f"{text!r}: a registry's image is named by its reference alone",
                hint=f"leave out {_SKOPEO_REGISTRY}: {text.removeprefix(_SKOPEO_REGISTRY)}",
            )
        Reference.parse(text)
        return cls(LocationKind.REGISTRY, text)

    @property
    def archive_format(self) -> ArchiveFormat:
        """The form of an archive or a folder."""
        return ArchiveFormat(self.kind.value)

    @property
    def is_archive(self) -> bool:
        """Whether it is an archive or a layout's folder."""
        return self.kind not in {LocationKind.REGISTRY, LocationKind.STORE}

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}" if self.kind.value else self.name
