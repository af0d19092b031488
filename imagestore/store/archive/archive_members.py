"""The files of the archives that an export writes.

An OCI layout is arranged as containerd's export does it, with Docker's ``manifest.json`` next to it. A referrer is an
entry of ``index.json`` without a name, as oras writes it; its ``subject`` says what it refers to.

A docker-archive (moby image-spec 1.2) has configs, layers without compression, and ``manifest.json``. Config digests
(image ids) and diff ids stay; digests of manifests and compressed layers are not part of this format. A layer's
uncompressed size must stand before its bytes, so a compressed layer is read twice.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from imagestore.errors import InvalidInputError
from imagestore.oci import layout, rendering
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest, Verifier
from imagestore.oci.image_config import config_of
from imagestore.oci.media_types import Kind
from imagestore.store.archive.compressions import compression_of, plain
from imagestore.store.archive.writing import BLOB_MODE, FILE_MODE, Member

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from imagestore.oci.digest import Digest
    from imagestore.oci.manifest import Manifest
    from imagestore.store.archive.index_survey import ExportedImage, SurveyedManifest
    from imagestore.util.cancel import CancelToken

    #: Gives the bytes behind a descriptor in pieces; their end is an error if they aren't what it says.
    Read = Callable[[Descriptor], Generator[bytes]]


def layout_members(images: Sequence[ExportedImage], read: Read) -> list[Member]:
    """Everything that the archive has, each blob once.

    Args:
        read: gives a blob's bytes, verified by their end.
    """
    blobs: dict[Digest, Descriptor] = {}
    for image in images:
        blobs[image.target.digest] = image.target
        for found in image.manifests:
            chain = found.chain if image.target.kind is Kind.INDEX else ()
            blobs.update((each.digest, each) for each in (*chain, *found.descriptors))
        for found in image.referrers:
            blobs.update((each.digest, each) for each in found.descriptors)
    entries = sorted((_entry(image) for image in images), key=lambda entry: entry.annotations[layout.NAME_KEY])
    referrers = {found.descriptor.digest: found.descriptor for image in images for found in image.referrers}
    entries += [referrers[digest] for digest in sorted(referrers)]
    files = layout_files(blobs.values(), entries, read)
    saved = _saved(images)
    if saved:
        files.append(Member.of(layout.DOCKER_MANIFEST, rendering.render(saved)))
    return files


def layout_files(blobs: Iterable[Descriptor], entries: Iterable[Descriptor], read: Read) -> list[Member]:
    """The files of a layout.

    Args:
        entries: of ``index.json``.
    """
    files = [
        Member(layout.blob_name(each.digest), each.size, BLOB_MODE, functools.partial(read, each), each)
        for each in blobs
    ]
    mark, index = layout.render_mark(), rendering.render_index(entries)
    return [*files, Member.of(layout.MARK, mark), Member.of(layout.INDEX, index)]


def _entry(image: ExportedImage) -> Descriptor:
    names = layout.name_annotations(image.reference)
    if image.target.kind is Kind.INDEX:
        if image.left_out:
            names[layout.PRESENT_KEY] = ",".join(image.platforms)
        return Descriptor(image.target.media_type, image.target.digest, image.target.size, annotations=names)
    return replace(image.target, platform=image.manifests[0].platform, annotations=names, urls=(), data=None)


def _saved(images: Sequence[ExportedImage]) -> list[dict[str, Any]]:
    """Docker's list: one manifest for each name, each manifest once; artifacts are nothing to Docker."""
    found: dict[Digest, tuple[SurveyedManifest, list[str]]] = {}
    for image in images:
        first = next((each for each in image.manifests if each.manifest is not None and each.manifest.is_image), None)
        if first is None or first.descriptor.is_attestation:
            continue
        tags = found.setdefault(first.descriptor.digest, (first, []))[1]
        if image.reference.tag and image.reference.digest is None:
            tags.append(image.reference.familiar)
    return [_saved_image(each, sorted(tags)) for _, (each, tags) in sorted(found.items())]


def _saved_image(found: SurveyedManifest, tags: list[str]) -> dict[str, Any]:
    assert found.manifest is not None
    return {
        "Config": layout.blob_name(found.manifest.config.digest),
        "RepoTags": tags,
        "Layers": [layout.blob_name(layer.digest) for layer in found.manifest.layers],
    }


def docker_members(images: Sequence[ExportedImage], read: Read, *, cancel: CancelToken) -> list[Member]:
    """Everything that the archive has; compressed layers are read through once.

    Raises:
        InvalidInputError: an image is an artifact, or has a layer compressed in a way that isn't read.
        IntegrityError: a layer isn't what the config's diff id says.
    """
    files: dict[str, Member] = {}
    saved: dict[Digest, dict[str, Any]] = {}
    for image in images:
        manifest = image.manifests[0].manifest
        if manifest is None or not manifest.is_image:
            raise InvalidInputError(f"{image.reference}: is an artifact, which a docker-archive can't hold")
        image_id = manifest.config.digest
        if image_id not in saved:
            saved[image_id] = _add_docker_image(manifest, files, read, cancel)
        if image.reference.tag and image.reference.digest is None:
            saved[image_id]["RepoTags"].append(image.reference.familiar)
    for each in saved.values():
        each["RepoTags"].sort()
    listed = sorted(saved.values(), key=lambda each: str(each["Config"]))
    return [*files.values(), Member.of(layout.DOCKER_MANIFEST, rendering.render(listed))]


def _add_docker_image(manifest: Manifest, files: dict[str, Member], read: Read, cancel: CancelToken) -> dict[str, Any]:
    """An entry of ``manifest.json``; its files are added to ``files``."""
    what = f"image config {manifest.config.digest}"
    raw = b"".join(read(manifest.config))
    config = config_of(manifest, raw, what=what)
    if config is None:
        raise InvalidInputError(f"{what}: is an artifact's, which a docker-archive can't hold")
    # Docker knows images by sha256 alone; the id of an image under another algorithm is not part of this format.
    config_name = f"{Digest.of(raw).encoded}.json"
    files[config_name] = Member.of(config_name, raw)
    names = []
    for layer, diff_id in zip(manifest.layers, config.diff_ids, strict=True):
        name = f"{diff_id.encoded}.tar"
        names.append(name)
        if name not in files:
            files[name] = _docker_layer(name, layer, diff_id, read, cancel)
    return {"Config": config_name, "RepoTags": [], "Layers": names}


def _docker_layer(name: str, layer: Descriptor, diff_id: Digest, read: Read, cancel: CancelToken) -> Member:
    def _pieces() -> Iterator[bytes]:
        verifier = Verifier(diff_id, what=f"layer {layer.digest} uncompressed")
        with contextlib.closing(plain(read(layer), what=f"layer {layer.digest}", check=cancel.check)) as pieces:
            for piece in pieces:
                cancel.check()
                verifier.update(piece)
                yield piece
        verifier.finish()

    # By the bytes: labels on layers are wrong now and then.
    with contextlib.closing(read(layer)) as beginning:
        is_packed = bool(compression_of(next(beginning, b"")))
    size = sum(len(piece) for piece in _pieces()) if is_packed else layer.size
    return Member(name, size, FILE_MODE, _pieces, layer)
