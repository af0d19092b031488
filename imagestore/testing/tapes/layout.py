"""Tapes to and from OCI image layouts (image-spec 1.1, image-layout.md).

Entries of ``index.json`` are named as in an export. What comes in is verified, and only regular files are read.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import ContentNotFoundError, DocumentError, ImageStoreError, InvalidReferenceError
from imagestore.oci import (
    Descriptor,
    Digest,
    Index,
    Kind,
    Manifest,
    Reference,
    grammar,
    layout,
    media_types,
    render_index,
    verify,
)
from imagestore.testing.builders.bodies import FileBody
from imagestore.testing.engine.urls import parse_path
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.tape import Tape, TapeContent, TapeRepository
from imagestore.util.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_DOCUMENT: Final = 8 << 20


def tape_to_layout(tape: Tape, blobs: BlobFolder, folder: str) -> int:
    """Write everything a tape can serve as a layout; gives the number of entries in its index.

    Raises:
        ContentNotFoundError: a body is missing.
        DocumentError: an index in it can't be read.
        ImageStoreError: the folder has a layout already.
    """
    if os.path.exists(os.path.join(folder, layout.INDEX)):
        raise ImageStoreError(f"layout {folder}: exists already; nothing was written", hint="name another folder")
    out = BlobFolder(os.path.join(folder, layout.BLOBS))
    os.makedirs(out.root, exist_ok=True)
    computed = tape.synthetic_bodies()
    entries: list[Descriptor] = []
    for repository in (*tape.repositories, *recorded_repositories(tape)):
        for content in (*repository.manifests, *repository.blobs):
            out.put(computed.get(content.digest) or blobs.open(content.digest), content.digest)
        entries += _entries(repository, out)
    write_whole(os.path.join(folder, layout.MARK), layout.render_mark())
    write_whole(os.path.join(folder, layout.INDEX), render_index(entries))
    return len(entries)


def recorded_repositories(tape: Tape) -> list[TapeRepository]:
    """What the recorded exchanges of a tape hold of whole manifests and blobs, as repositories."""
    found: dict[tuple[str, str], TapeRepository] = {}
    bodies: dict[Digest, TapeContent] = {}
    for one in tape.exchanges:
        if one.body is None or one.status != 200 or one.range or one.ending is not None:
            continue
        target = parse_path(one.path)
        if target.kind == "manifest":
            kind = next((value for name, value in one.headers if name.lower() == "content-type"), "")
            document = replace(one.body, media_type=media_types.bare(kind))
            place = (one.host, target.repository)
            known = found.get(place) or TapeRepository(one.host, target.repository)
            tags = dict(known.tags) | ({} if target.digest else {target.reference: document.digest})
            manifests = tuple({*known.manifests, document})
            found[place] = replace(known, tags=tags, manifests=manifests)
        else:
            bodies[one.body.digest] = one.body
    # A blob may have come from a storage host, so its repository is unknown.
    return [replace(one, blobs=tuple(bodies.values())) for one in found.values()]


def _entries(repository: TapeRepository, blobs: BlobFolder) -> Iterator[Descriptor]:
    by_digest = {one.digest: one for one in repository.manifests}
    for tag, digest in sorted(repository.tags.items()):
        yield _entry(by_digest[digest], Reference(repository.host, repository.path, tag))
    # What has no tag and is in no index (a referrer, say) would not be found again.
    named = set(repository.tags.values())
    for content in repository.manifests:
        if media_types.kind(content.media_type) is Kind.INDEX:
            raw = b"".join(blobs.open(content.digest).chunks())
            named |= {one.digest for one in Index.parse(raw, what=str(content.digest)).manifests}
    for content in sorted(repository.manifests):
        if content.digest not in named:
            yield _entry(content, Reference(repository.host, repository.path, digest=content.digest))


def _entry(content: TapeContent, reference: Reference) -> Descriptor:
    names = layout.name_annotations(reference)
    return Descriptor(content.media_type, content.digest, content.size, annotations=names)


def layout_to_tape(folder: str, blobs: BlobFolder, *, name: str, about: str = "") -> Tape:
    """Read a layout as a tape; its bodies are put into ``blobs``.

    ``name`` is the repository for entries that don't say their full reference, for example ``registry.example/app``.

    Raises:
        DocumentError: no layout, or a document in it that can't be read.
        IntegrityError: a blob is not what its name says.
        InvalidReferenceError: the name is not a reference.
    """
    return Tape(about=about, repositories=tuple(_read_layout(folder, blobs, Reference.parse(name)).values()))


def check_layout(folder: str, source: BlobFolder | None = None) -> None:
    """Check that a layout has what its documents need, with bodies in ``source`` if that is given; nothing is copied.

    Raises:
        ContentNotFoundError: a blob is missing.
        DocumentError: no layout, or a document in it that can't be read.
    """
    _read_layout(folder, None, Reference.parse("layout.invalid/any"), source)


def _read_layout(
    folder: str, blobs: BlobFolder | None, default: Reference, source: BlobFolder | None = None
) -> dict[tuple[str, str], TapeRepository]:
    source = source or BlobFolder(os.path.join(folder, layout.BLOBS))
    what = f"layout {folder}"
    _regular(os.path.join(folder, layout.MARK), what)
    index = Index.parse(_document(os.path.join(folder, layout.INDEX), what), what=what)
    found: dict[tuple[str, str], TapeRepository] = {}
    for entry in index.manifests:
        reference = _reference_of(entry, default)
        place = (reference.host, reference.path)
        known = found.get(place) or TapeRepository(*place)
        manifests = {one.digest: one for one in known.manifests}
        parts = {one.digest: one for one in known.blobs}
        if not source.has(entry.digest):
            raise ContentNotFoundError(f"{what}: {layout.INDEX} names {entry.digest}, which is not in its blobs")
        _walk(entry, source, blobs, manifests, parts)
        tags = dict(known.tags) | ({reference.tag: entry.digest} if reference.tag else {})
        found[place] = replace(known, tags=tags, manifests=tuple(manifests.values()), blobs=tuple(parts.values()))
    return found


def _reference_of(entry: Descriptor, default: Reference) -> Reference:
    tag = entry.annotations.get(layout.REF_KEY, "")
    if layout.NAME_KEY in entry.annotations:
        try:
            return Reference.parse(entry.annotations[layout.NAME_KEY])
        except InvalidReferenceError:
            tag = ""
    return replace(default, tag=tag if grammar.TAG.fullmatch(tag) else "")


def _walk(
    entry: Descriptor,
    source: BlobFolder,
    blobs: BlobFolder | None,
    manifests: dict[Digest, TapeContent],
    parts: dict[Digest, TapeContent],
) -> None:
    """Take over what an entry reaches; manifests that the layout doesn't have are left out (it may be sparse)."""
    open_entries = [entry]
    while open_entries:
        one = open_entries.pop()
        digest = one.digest
        if digest in manifests or digest in parts:
            continue
        is_document = one.kind in (Kind.INDEX, Kind.MANIFEST)
        if not source.has(digest):
            if is_document or one.urls:
                continue
            raise ContentNotFoundError(f"layout: {digest} is not in its blobs, but a manifest in it needs it")
        path = _regular(source.path(digest), "layout")
        if not is_document:
            body = FileBody(path, os.stat(path).st_size)
            if blobs is not None:
                blobs.put(body, digest)
            parts[digest] = TapeContent(digest, body.size)
            continue
        data = _document(path, str(digest))
        verify(data, digest)
        if blobs is not None:
            blobs.put(data, digest)
        manifests[digest] = TapeContent(digest, len(data), one.media_type)
        if one.kind is Kind.INDEX:
            open_entries += Index.parse(data, media_type=one.media_type, what=str(digest)).manifests
        else:
            open_entries += Manifest.parse(data, media_type=one.media_type, what=str(digest)).children


def _document(path: str, what: str) -> bytes:
    with open(_regular(path, what), "rb") as file:
        data = file.read(_MAX_DOCUMENT + 1)
    if len(data) > _MAX_DOCUMENT:
        raise DocumentError(what, [f"longer than {_MAX_DOCUMENT} bytes"])
    return data


def _regular(path: str, what: str) -> str:
    try:
        is_plain = stat.S_ISREG(os.lstat(path).st_mode)
    except OSError as problem:
        raise DocumentError(what, [f"{os.path.basename(path)}: {problem.strerror}"]) from problem
    if not is_plain:
        raise DocumentError(what, [f"{os.path.basename(path)}: expected a regular file"])
    return path
