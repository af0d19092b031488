"""Tapes to and from OCI image layouts (image-spec 1.1, image-layout.md).

Entries of ``index.json`` carry the tag as ``org.opencontainers.image.ref.name`` and the full reference as
``io.containerd.image.name``, as other tools do. What comes in is verified, and only regular files are read.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    ContentNotFoundError,
    DocumentError,
    ImageStoreError,
    InvalidDigestError,
    InvalidReferenceError,
)
from imagestore.oci import Digest, Reference, grammar, media_types, verify
from imagestore.testing.builders.bodies import FileBody
from imagestore.testing.engine.urls import parse_path
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.tape import Tape, TapeContent, TapeRepository
from imagestore.util.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

_LAYOUT: Final = b'{"imageLayoutVersion":"1.0.0"}'
_TAG_KEY: Final = "org.opencontainers.image.ref.name"
_NAME_KEY: Final = "io.containerd.image.name"
_MAX_DOCUMENT: Final = 8 << 20


def tape_to_layout(tape: Tape, blobs: BlobFolder, folder: str) -> int:
    """Write everything a tape can serve as a layout; gives the number of entries in its index.

    Raises:
        ContentNotFoundError: a body is missing.
        ImageStoreError: the folder has a layout already.
    """
    if os.path.exists(os.path.join(folder, "index.json")):
        raise ImageStoreError(f"layout {folder}: exists already; nothing was written", hint="name another folder")
    out = BlobFolder(os.path.join(folder, "blobs"))
    os.makedirs(out.root, exist_ok=True)
    computed = tape.synthetic_bodies()
    entries: list[dict[str, object]] = []
    for repository in (*tape.repositories, *recorded_repositories(tape)):
        for content in (*repository.manifests, *repository.blobs):
            out.put(computed.get(content.digest) or blobs.open(content.digest), content.digest)
        entries += _entries(repository, blobs)
    index = {"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": entries}
    write_whole(os.path.join(folder, "oci-layout"), _LAYOUT)
    write_whole(os.path.join(folder, "index.json"), json.dumps(index, indent=2).encode())
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


def _entries(repository: TapeRepository, blobs: BlobFolder) -> list[dict[str, object]]:
    by_digest = {one.digest: one for one in repository.manifests}
    out: list[dict[str, object]] = []
    for tag, digest in sorted(repository.tags.items()):
        content = by_digest[digest]
        name = f"{repository.host}/{repository.path}:{tag}"
        out.append(_entry(content) | {"annotations": {_TAG_KEY: tag, _NAME_KEY: name}})
    # What has no tag and is in no index (a referrer, say) would not be found again.
    named = set(repository.tags.values()) | _members(repository, blobs)
    for content in sorted(repository.manifests):
        if content.digest not in named:
            name = f"{repository.host}/{repository.path}@{content.digest}"
            out.append(_entry(content) | {"annotations": {_NAME_KEY: name}})
    return out


def _members(repository: TapeRepository, blobs: BlobFolder) -> set[Digest]:
    """Manifests that an index of the repository lists."""
    found: set[Digest] = set()
    for content in repository.manifests:
        if media_types.kind(content.media_type) is media_types.Kind.INDEX and content.size <= _MAX_DOCUMENT:
            document = _decode(b"".join(blobs.open(content.digest).chunks()), str(content.digest))
            listed = document.get("manifests")
            members = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
            found |= {_pointer(one, str(content.digest))[0] for one in members}
    return found


def _entry(content: TapeContent) -> dict[str, object]:
    return {"mediaType": content.media_type, "digest": str(content.digest), "size": content.size}


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
    source = source or BlobFolder(os.path.join(folder, "blobs"))
    what = f"layout {folder}"
    _regular(os.path.join(folder, "oci-layout"), what)
    with open(_regular(os.path.join(folder, "index.json"), what), "rb") as file:
        index = _decode(file.read(_MAX_DOCUMENT + 1), what)
    found: dict[tuple[str, str], TapeRepository] = {}
    for entry in _children(index):
        reference = _reference_of(entry, default)
        place = (reference.host, reference.path)
        known = found.get(place) or TapeRepository(*place)
        digest, _ = _pointer(entry, what)
        manifests = {one.digest: one for one in known.manifests}
        parts = {one.digest: one for one in known.blobs}
        if not source.has(digest):
            raise ContentNotFoundError(f"{what}: index.json names {digest}, which is not in its blobs")
        _walk(entry, source, blobs, manifests, parts)
        tags = dict(known.tags) | ({reference.tag: digest} if reference.tag else {})
        found[place] = replace(known, tags=tags, manifests=tuple(manifests.values()), blobs=tuple(parts.values()))
    return found


def _reference_of(entry: dict[str, object], default: Reference) -> Reference:
    annotations = entry.get("annotations")
    marks = annotations if isinstance(annotations, dict) else {}
    full, tag = marks.get(_NAME_KEY), marks.get(_TAG_KEY)
    if isinstance(full, str):
        try:
            return Reference.parse(full)
        except InvalidReferenceError:
            tag = None
    return replace(default, tag=tag if isinstance(tag, str) and grammar.TAG.fullmatch(tag) else "")


def _walk(
    entry: dict[str, object],
    source: BlobFolder,
    blobs: BlobFolder | None,
    manifests: dict[Digest, TapeContent],
    parts: dict[Digest, TapeContent],
) -> None:
    """Take over what an entry reaches; manifests that the layout doesn't have are left out (it may be sparse)."""
    open_entries = [entry]
    while open_entries:
        one = open_entries.pop()
        digest, media_type = _pointer(one, "layout")
        if digest in manifests or digest in parts:
            continue
        is_document = media_types.kind(media_type) in (media_types.Kind.INDEX, media_types.Kind.MANIFEST)
        if not source.has(digest):
            if is_document or one.get("urls"):
                continue
            raise ContentNotFoundError(f"layout: {digest} is not in its blobs, but a manifest in it needs it")
        path = _regular(source.path(digest), "layout")
        if not is_document:
            body = FileBody(path, os.stat(path).st_size)
            if blobs is not None:
                blobs.put(body, digest)
            parts[digest] = TapeContent(digest, body.size)
            continue
        with open(path, "rb") as file:
            data = file.read(_MAX_DOCUMENT + 1)
        verify(data, digest)
        if blobs is not None:
            blobs.put(data, digest)
        manifests[digest] = TapeContent(digest, len(data), media_type)
        open_entries += _children(_decode(data, str(digest)))


def _children(document: dict[str, object]) -> Iterator[dict[str, object]]:
    for member in ("manifests", "layers"):
        value = document.get(member)
        yield from (one for one in (value if isinstance(value, list) else []) if isinstance(one, dict))
    config = document.get("config")
    if isinstance(config, dict):
        yield config


def _pointer(entry: dict[str, object], what: str) -> tuple[Digest, str]:
    digest, media_type = entry.get("digest"), entry.get("mediaType")
    if not isinstance(digest, str) or not isinstance(media_type, str):
        raise DocumentError(what, ["an entry has no digest or no mediaType"])
    try:
        return Digest.parse(digest), media_type
    except InvalidDigestError as problem:
        raise DocumentError(what, [str(problem)]) from problem


def _decode(data: bytes, what: str) -> dict[str, object]:
    if len(data) > _MAX_DOCUMENT:
        raise DocumentError(what, [f"longer than {_MAX_DOCUMENT} bytes"])
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise DocumentError(what, [f"not JSON: {problem}"]) from problem
    if not isinstance(value, dict):
        raise DocumentError(what, ["expected an object"])
    return value


def _regular(path: str, what: str) -> str:
    try:
        is_plain = stat.S_ISREG(os.lstat(path).st_mode)
    except OSError as problem:
        raise DocumentError(what, [f"{os.path.basename(path)}: {problem.strerror}"]) from problem
    if not is_plain:
        raise DocumentError(what, [f"{os.path.basename(path)}: expected a regular file"])
    return path
