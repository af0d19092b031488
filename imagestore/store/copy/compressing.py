"""Images of a docker-archive on their way out: layers in gzip, and types that the readers at the destination take.

A docker-archive has plain tars and no manifest, so its image has no digest to keep. Some registries refuse Docker's
plain layer type, and plain tars are several times as long; so layers are compressed before they are sent. Docker has no
type for zstd: with such a layer the manifest gets OCI's types, as in an OCI layout. The config, and with it the image
id, stays.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.oci import layout, media_types
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest, new_hash
from imagestore.oci.manifest import Manifest
from imagestore.store.archive.compressions import compression_of
from imagestore.store.archive.contents import PieceTransfer
from imagestore.store.archive.index_survey import SurveyedManifest
from imagestore.store.image_source import ImageSource
from imagestore.store.pull.sources import Documents
from imagestore.util.disk_errors import translated

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path
    from typing import IO

    from imagestore.oci.reference import Reference
    from imagestore.registry.blobs import Transfer
    from imagestore.store.archive.index_survey import ExportedImage
    from imagestore.store.pull.sources import Origin
    from imagestore.util.cancel import CancelToken

_PIECE_BYTES: Final = 1024 * 1024
_PARALLEL: Final = 4
# zlib's default; its header has no time, so the same layer has the same digest every time.
_LEVEL: Final = 6
_GZIP_WINDOW: Final = 31
#: Types of layers that made manifests have and registries don't take.
_CHANGED: Final = frozenset({media_types.DOCKER_LAYER, media_types.DOCKER_LAYER_ZSTD})
_OCI: Final = {
    media_types.DOCKER_MANIFEST: media_types.OCI_MANIFEST,
    media_types.DOCKER_CONFIG: media_types.OCI_CONFIG,
    media_types.DOCKER_LAYER_GZIP: media_types.OCI_LAYER_GZIP,
    media_types.DOCKER_LAYER_ZSTD: media_types.OCI_LAYER_ZSTD,
}


def made_manifest(image: ExportedImage) -> Manifest | None:
    """The manifest of an image that has no other one than what was made for a docker-archive's; None otherwise.

    It has exactly the bytes that are made at an import, with a layer that registries don't take.
    """
    manifests = image.manifests
    if len(manifests) != 1 or manifests[0].descriptor.digest != image.target.digest:
        return None
    found = manifests[0].manifest
    if found is None or not _CHANGED.intersection(layer.media_type for layer in found.layers):
        return None
    return found if found.raw == layout.render_docker_manifest(found.config, found.layers) else None


@contextlib.contextmanager
def compressed(
    image: ExportedImage,
    source: ImageSource,
    made: Manifest,
    scratch: Path,
    *,
    is_oci: bool,
    cancel: CancelToken,
) -> Iterator[tuple[ExportedImage, ImageSource]]:
    """An image with its plain layers in gzip, for a block of work, and where it is read from.

    Args:
        made: its manifest, from made_manifest().
        scratch: on whose disk the nameless temporary files are.
        is_oci: with OCI's types in any case.

    Raises:
        IntegrityError: a layer isn't what its digest says.
        StoreError: the temporary files can't be written.
    """
    plain = {layer.digest: layer for layer in made.layers if layer.media_type == media_types.DOCKER_LAYER}
    if any(_is_compressed(source, layer, cancel) for layer in plain.values()):
        # No tar in spite of its type: not from a docker-archive.
        yield image, source
        return
    with contextlib.ExitStack() as stack:
        with translated("write a temporary file", scratch):
            files = {digest: stack.enter_context(tempfile.TemporaryFile(dir=scratch, buffering=0)) for digest in plain}
        packed = _packed(source, plain, files, scratch, cancel)
        is_oci = is_oci or any(layer.media_type == media_types.DOCKER_LAYER_ZSTD for layer in made.layers)
        types = _OCI if is_oci else {}
        config, *layers = (
            replace(part, media_type=types.get(part.media_type, part.media_type))
            for part in (made.config, *(packed.get(layer.digest, layer) for layer in made.layers))
        )
        media_type = types.get(media_types.DOCKER_MANIFEST, media_types.DOCKER_MANIFEST)
        raw = layout.render_docker_manifest(config, layers, media_type)
        target = Descriptor(media_type, Digest.of(raw), len(raw))
        origin = _PackedOrigin(source.origin, {packed[digest].digest: file for digest, file in files.items()})
        documents = Documents(None, origin, source.reference, cancel)
        documents.remember(target, raw)
        platform = image.manifests[0].platform
        found = SurveyedManifest(target, (), Manifest.parse(raw, media_type=media_type), platform, ())
        yield (
            replace(image, target=target, manifests=(found,)),
            ImageSource(source.reference, origin, documents, source.referrers),
        )


def _is_compressed(source: ImageSource, layer: Descriptor, cancel: CancelToken) -> bool:
    head = memoryview(bytearray(64))
    with source.open(layer, 0, cancel=cancel) as transfer:
        return bool(compression_of(bytes(head[: transfer.readinto(head)])))


def _packed(
    source: ImageSource,
    plain: Mapping[Digest, Descriptor],
    files: Mapping[Digest, IO[bytes]],
    scratch: Path,
    cancel: CancelToken,
) -> dict[Digest, Descriptor]:
    """The compressed layers by the digests of the plain ones; several are compressed at a time."""
    with cancel.child() as token, ThreadPoolExecutor(_PARALLEL, "imagestore-gzip") as threads:
        steps = {
            digest: threads.submit(_pack, source, layer, files[digest], scratch, token)
            for digest, layer in plain.items()
        }
        try:
            return {digest: step.result() for digest, step in steps.items()}
        except BaseException:
            token.cancel("another layer can't be compressed")
            raise


def _pack(source: ImageSource, layer: Descriptor, file: IO[bytes], scratch: Path, cancel: CancelToken) -> Descriptor:
    packer, packed, size = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW), new_hash("sha256"), 0

    def _keep(data: bytes) -> int:
        packed.update(data)
        with translated("write a temporary file", scratch):
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        return len(data)

    for piece in source.pieces(layer, cancel=cancel):
        cancel.check()
        size += _keep(packer.compress(piece))
    size += _keep(packer.flush())
    return Descriptor(media_types.DOCKER_LAYER_GZIP, Digest("sha256", packed.hexdigest()), size)


@dataclass(frozen=True, slots=True)
class _PackedOrigin:
    """An origin, and files with layers that it hasn't."""

    inner: Origin
    files: Mapping[Digest, IO[bytes]]

    def document(self, reference: Reference, descriptor: Descriptor, *, cancel: CancelToken) -> bytes:
        """See Origin."""
        return self.inner.document(reference, descriptor, cancel=cancel)

    def blob(
        self, reference: Reference, descriptor: Descriptor, *, offset: int, avoid: Collection[str], cancel: CancelToken
    ) -> Transfer:
        """See Origin."""
        file = self.files.get(descriptor.digest)
        if file is None:
            return self.inner.blob(reference, descriptor, offset=offset, avoid=avoid, cancel=cancel)
        return PieceTransfer(_pieces(file, offset), offset)


def _pieces(file: IO[bytes], offset: int) -> Iterator[bytes]:
    while piece := os.pread(file.fileno(), _PIECE_BYTES, offset):
        yield piece
        offset += len(piece)
