"""One name of an archive that is written: what it leads to, and what of it goes along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.reference import Reference
    from imagestore.store.archive.survey import Found


@dataclass(frozen=True, slots=True)
class ExportedImage:
    """One name in an archive.

    Attributes:
        reference: canonical.
        target: what it leads to in the archive.
        manifests: the manifests that are in it.
        platforms: theirs, in text form.
        left_out: platforms that the image has, but not in this archive.
    """

    reference: Reference
    target: Descriptor
    manifests: tuple[Found, ...]
    platforms: tuple[str, ...]
    left_out: tuple[str, ...]
