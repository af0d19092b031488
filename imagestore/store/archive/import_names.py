"""What imported images are called, by an explicit policy.

An archive's own full references are taken and reported; a bare tag or no name at all needs one from the user. A record
that leads to other content already is moved only with ``--replace``: the author of an archive could otherwise
put their content behind a name that is trusted here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    AlreadyExistsError,
    DigestMismatchError,
    ImageNotFoundError,
    InvalidInputError,
    InvalidReferenceError,
)
from imagestore.oci.reference import Reference
from imagestore.util.text import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.archive.contents import ArchiveImage

#: A repository for hints.
_EXAMPLE: Final = "registry.example/repository"
#: Characters of a name in messages.
_MAX_SHOWN: Final = 200
_HINT: Final = "--replace moves the name to the archive's content; --name gives the archive's another name"
_HINT_LACKING: Final = "--platform takes what the archive has; --replace moves the name to that content of the store"


def assign(
    images: Sequence[ArchiveImage], *, only: Iterable[str], name: str, what: str, left_out: Sequence[str] = ()
) -> tuple[list[tuple[Reference, ArchiveImage]], list[str]]:
    """Give every image that is wanted its reference.

    Args:
        only: names in the archive, full or as it labels them; empty means all.
        name: instead of the archive's, when there is one image; empty means the archive's.
        left_out: what the archive lists that is no image, for people.

    Returns:
        Reference and image, and notes on what was left out.

    Raises:
        InvalidReferenceError: a name can't be read.
        ImageNotFoundError: the archive has no image of that name.
        InvalidInputError: a name is missing, or there are several images for one.
    """
    wanted = picked(images, list(only), what)
    if not wanted:
        raise ImageNotFoundError(f"{what}: holds no image", hint=left_out[0] if left_out else "")
    if name:
        if len(wanted) > 1:
            raise InvalidInputError(
                f"{what}: holds {len(wanted)} images ({_listed(wanted)}), and one name was given",
                hint="choose one of them, or import them under their own names",
            )
        return [(Reference.parse(name), wanted[0])], []
    nameless = [image for image in wanted if image.name is None]
    if len(nameless) == len(wanted):
        raise _unnamed(next((image.label for image in nameless if image.label), ""), what)
    notes = [f"{what}: {image} was left out, since it has no full name" for image in nameless]
    return [(image.name, image) for image in wanted if image.name is not None], notes


def _unnamed(label: str, what: str) -> InvalidInputError:
    """What is said of an archive whose images all lack a full name."""
    said, tag = "has no name for its image", "tag"
    if label:
        try:
            said, tag = f"says only the tag {label!r}", Reference.parse(f"{_EXAMPLE}:{label}").tag
        except InvalidReferenceError:
            said = f"has a name for its image that is no reference: {_fault(label)}"
    return InvalidInputError(f"{what}: {said}", hint=f"give it one, for example --name {_EXAMPLE}:{tag}")


def _fault(label: str) -> str:
    try:
        Reference.parse(label)
    except InvalidReferenceError as error:
        return str(error)
    return cut(repr(label), _MAX_SHOWN)


def check_digest(reference: Reference, target: Descriptor) -> None:
    """Check that a reference with a digest is given to that content only.

    Raises:
        DigestMismatchError: it is other content.
    """
    if reference.digest is not None and reference.digest != target.digest:
        raise DigestMismatchError(str(reference), expected=str(reference.digest), actual=str(target.digest))


def check_free(
    here: Mapping[tuple[str, str], ImageRecord],
    records: Iterable[ImageRecord],
    has: Callable[[Digest], bool],
    *,
    may_replace: bool,
) -> None:
    """Check that no record would be moved to other content, unless it may.

    Args:
        here: records of these names that there are, by (reference, handler).
        has: whether the archive has a document; what it leads to may be in the store alone.

    Raises:
        AlreadyExistsError: one would.
    """
    if may_replace:
        return
    for record in records:
        current = here.get((record.reference, record.handler))
        if current is None or _content(current) == _content(record):
            continue
        what, there, new = "target", current.target.digest, record.target.digest
        if there == new:
            what, there, new = "manifest", current.manifest.digest, record.manifest.digest
        said, hint = f"the archive has {new}", _HINT
        if not has(new):
            said, hint = f"the archive leads to {new}, which it lacks", _HINT_LACKING
        raise AlreadyExistsError(
            f"{record.reference} ({record.handler}): is in the store with {what} {there}, {said}", hint=hint
        )


def _content(record: ImageRecord) -> tuple[object, object]:
    return record.target.digest, record.manifest.digest


def picked(images: Sequence[ArchiveImage], only: list[str], what: str) -> list[ArchiveImage]:
    """The images of an archive that are wanted.

    Args:
        only: names in it, full or as it labels them; empty means all.

    Raises:
        InvalidReferenceError: a name can't be read.
        ImageNotFoundError: the archive has no image of that name.
    """
    if not only:
        return list(images)
    picked: list[ArchiveImage] = []
    for text in only:
        found = [each for each in images if each.label == text and each.name is None]
        found = found or [each for each in images if each.name == Reference.parse(text)]
        if not found:
            raise ImageNotFoundError(f"{what}: has no image {text!r}", hint=f"it has {_listed(images)}")
        picked += found
    return list(dict.fromkeys(picked))


def _listed(images: Sequence[ArchiveImage]) -> str:
    shown = [str(image) for image in images[:10]] + ([f"and {len(images) - 10} more"] if len(images) > 10 else [])
    return ", ".join(shown) or "none"
