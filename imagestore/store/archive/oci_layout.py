"""Reading an OCI layout (image-spec 1.1, image-layout.md), and telling which format an archive has.

An archive with ``oci-layout`` is a layout, also when it has Docker's ``manifest.json`` too, as in containerd. Files are
found by the digest in their names and believed only when their bytes have it. Symbolic links are not followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError, IntegrityError, InvalidDigestError, InvalidReferenceError
from imagestore.oci import layout
from imagestore.oci.decode import MAX_INDEX_BYTES, decode
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.index import Index
from imagestore.oci.media_types import Kind
from imagestore.oci.reference import Reference
from imagestore.oci.referrers import fallback_tag, subject_of
from imagestore.store.archive import docker_archive
from imagestore.store.archive.contents import NAMELESS, ArchiveContents, ArchiveOrigin, grouped
from imagestore.store.archive.source import read, size_of
from imagestore.util.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from imagestore.store.archive.source import Source
    from imagestore.util.cancel import CancelToken

_MAX_MARK_BYTES: Final = 4096
_SYSTEM_FOLDERS: Final = frozenset({"bin", "dev", "etc", "lib", "proc", "root", "sbin", "sys", "usr", "var"})
#: Folders at the top that make a file system of it.
_ENOUGH: Final = 2
_SHOWN: Final = 100
_IMAGES: Final = (Kind.INDEX, Kind.MANIFEST)


def image_finders(source: Source) -> list[Callable[[Source, CancelToken], ArchiveContents]]:
    """The functions that find the images of an archive, one for each description that it has, the preferred one first.

    Each may raise DocumentError if the archive breaks the rules of its format, and IntegrityError if a file of a
    docker-archive isn't what its name or config says.

    Raises:
        DocumentError: the archive is neither a layout nor a docker-archive.
    """
    names = source.sizes()
    found: list[Callable[[Source, CancelToken], ArchiveContents]] = []
    if layout.MARK in names:
        found.append(_find_layout_images)
    if layout.DOCKER_MANIFEST in names:
        found.append(docker_archive.find_images)
    if found:
        return found
    for name in (layout.MARK, layout.DOCKER_MANIFEST):
        if name in source.links or name in source.others:
            size_of(source, name)  # says what stands there instead
    fault = f"is no image archive: it has neither {layout.MARK!r} nor {layout.DOCKER_MANIFEST!r}"
    known = _recognized_by_names(names)
    raise DocumentError(source.what, [f"{fault}; {known}" if known else fault])


def _recognized_by_names(names: Collection[str]) -> str:
    """What an archive with these files is, which is no image archive; empty when that isn't known.

    >>> _recognized_by_names(["image/oci-layout", "image/index.json"])
    "it has an OCI layout in its folder 'image': import that one"
    """
    for name in names:
        above, _, last = name.rpartition("/")
        if above and last in (layout.MARK, layout.DOCKER_MANIFEST):
            form = "an OCI layout" if last == layout.MARK else "a docker-archive"
            return f"it has {form} in its folder {above[:_SHOWN]!r}: import that one"
    tops = {name.partition("/")[0] for name in names}
    if len(tops & _SYSTEM_FOLDERS) >= _ENOUGH:
        return "it is a file system, as 'docker export' and layers are, and no image: use 'docker save'"
    return ""


def _find_layout_images(source: Source, cancel: CancelToken) -> ArchiveContents:
    mark = decode(read(source, layout.MARK, limit_bytes=_MAX_MARK_BYTES), f"{source.what}: {layout.MARK}")
    if mark.get("imageLayoutVersion") != layout.VERSION:
        found = str(mark.get("imageLayoutVersion"))[:40]
        raise DocumentError(source.what, [f"has layout version {found!r}, expected {layout.VERSION!r}"])
    what = f"{source.what}: {layout.INDEX}"
    raw = read(source, layout.INDEX, limit_bytes=MAX_INDEX_BYTES)
    index = Index.parse(raw, what=what)
    usable = [entry for entry in index.manifests if entry.kind in _IMAGES]
    notes = tuple(
        f"{what}: entry {entry.digest} is of type {entry.media_type[:100]!r}{_called(entry)}, neither an index nor a "
        "manifest"
        for entry in index.manifests
        if entry.kind not in _IMAGES
    )
    origin = ArchiveOrigin(source, dict(_places(source)))
    referring = set(_referring(usable, origin, cancel))
    if referring:
        also = (
            f"{what}: {counted(len(referring), 'entry', 'entries')} that refer to its images are no images themselves"
        )
        notes = (*notes, also)
    images = grouped((*_name(entry), entry) for entry in usable if entry.digest not in referring)
    return ArchiveContents(images, origin, notes, index.manifests)


def _referring(entries: Sequence[Descriptor], origin: ArchiveOrigin, cancel: CancelToken) -> Iterator[Digest]:
    """Entries that are there for other documents of the layout: referrers without a name, and lists of referrers."""
    if len(entries) < 2:
        return
    tags: set[str] | None = None
    for entry in entries:
        name, label = _name(entry)
        if name is not None:
            continue
        if label and entry.kind is Kind.INDEX:
            tags = {fallback_tag(digest) for digest in origin.places} if tags is None else tags
            if label in tags:
                yield entry.digest
        elif not label and entry.kind is Kind.MANIFEST and origin.has(entry.digest):
            subject = _subject(entry, origin, cancel)
            if subject is not None and origin.has(subject):
                yield entry.digest


def _subject(entry: Descriptor, origin: ArchiveOrigin, cancel: CancelToken) -> Digest | None:
    try:
        raw = origin.document(NAMELESS, entry, cancel=cancel)
        return subject_of(raw, f"{origin.source.what}: manifest {entry.digest}")
    except (DocumentError, IntegrityError):
        return None  # the error comes when the manifest is needed


def _called(entry: Descriptor) -> str:
    return f" (a {Kind.SCHEMA1.value})" if entry.kind is Kind.SCHEMA1 else ""


def _name(entry: Descriptor) -> tuple[Reference | None, str]:
    """The full reference, or None and what there is instead: a tag, or a name that is no reference."""
    full = entry.annotations.get(layout.NAME_KEY, "")
    short = entry.annotations.get(layout.REF_KEY, "")
    if not full and not any(mark in short for mark in "/:@"):
        return None, short
    try:
        return Reference.parse(full or short), ""
    except InvalidReferenceError:
        return None, full or short


def _places(source: Source) -> Iterator[tuple[Digest, str]]:
    """File names by the digest they claim, links and the like too, which are refused when they are needed."""
    for name in (*source.sizes(), *source.links, *source.others):
        folder, _, rest = name.partition("/")
        algorithm, slash, encoded = rest.partition("/")
        if folder == layout.BLOBS and slash:
            try:
                yield Digest.parse(f"{algorithm}:{encoded}"), name
            except InvalidDigestError:
                continue
