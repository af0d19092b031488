"""The members of a docker-archive: configs, layers without compression, and ``manifest.json`` (moby image-spec 1.2).

Config digests (image ids) and diff ids stay; the digests of manifests and compressed layers are not part of this
format. A layer's uncompressed size must stand before its bytes, so a compressed one is read twice.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from imagestore.errors import InvalidInputError
from imagestore.oci.digest import Digest, Verifier
from imagestore.oci.image_config import image_config
from imagestore.store.archive import layout
from imagestore.store.archive.compressions import compression_of, decompressed
from imagestore.store.archive.writing import FILE_MODE, Member

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.manifest import Manifest
    from imagestore.store.archive.index_survey import ExportedImage
    from imagestore.store.archive.oci_export import Read
    from imagestore.util.cancel import CancelToken


def members(images: Sequence[ExportedImage], read: Read, *, cancel: CancelToken) -> list[Member]:
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
            saved[image_id] = _saved_image(manifest, files, read, cancel)
        if image.reference.tag and image.reference.digest is None:
            saved[image_id]["RepoTags"].append(image.reference.familiar)
    for each in saved.values():
        each["RepoTags"].sort()
    listed = sorted(saved.values(), key=lambda each: str(each["Config"]))
    return [*files.values(), Member.of(layout.DOCKER_MANIFEST, layout.render(listed))]


def _saved_image(manifest: Manifest, files: dict[str, Member], read: Read, cancel: CancelToken) -> dict[str, Any]:
    """An entry of ``manifest.json``; its files are added to ``files``."""
    what = f"image config {manifest.config.digest}"
    raw = b"".join(read(manifest.config))
    config = image_config(manifest, raw, what=what)
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
            files[name] = _layer(name, layer, diff_id, read, cancel)
    return {"Config": config_name, "RepoTags": [], "Layers": names}


def _layer(name: str, layer: Descriptor, diff_id: Digest, read: Read, cancel: CancelToken) -> Member:
    def _pieces() -> Iterator[bytes]:
        verifier = Verifier(diff_id, what=f"layer {layer.digest} uncompressed")
        packed = read(layer)
        for piece in decompressed(packed, kind, what=f"layer {layer.digest}") if kind else packed:
            cancel.check()
            verifier.update(piece)
            yield piece
        verifier.finish()

    # By the bytes: labels on layers are wrong now and then.
    with contextlib.closing(read(layer)) as beginning:
        kind = compression_of(next(beginning, b"")[:8])
    size = sum(len(piece) for piece in _pieces()) if kind else layer.size
    return Member(name, size, FILE_MODE, _pieces, layer)
