"""A store of a thousand images, made without pulling each: blobs are put in their place, records come in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.metadata import ImageRecord
from imagestore.testing import build_image, build_index, layer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagestore import Digest, ImageStore
    from imagestore.testing import Image

#: What popular images list.
PLATFORMS = (
    "linux/amd64",
    "linux/arm/v5",
    "linux/arm/v7",
    "linux/arm64/v8",
    "linux/386",
    "linux/ppc64le",
    "windows(10.0.20348.1970)/amd64",
    "windows(10.0.17763.4851)/amd64",
)


def fill(store: ImageStore, count: int, handler: str, platforms: Sequence[str] = PLATFORMS) -> None:
    """Give the store so many images, each with an index and a first manifest of its own and a layer that all have."""
    shared = layer("shared by all")
    others = [build_image(each, layers=[shared]) for each in platforms[1:]]
    records = []
    for number in range(count):
        labels = {"config": {"Labels": {"number": str(number)}}}
        index = build_index([build_image(platforms[0], layers=[shared], config=labels), *others])
        records.append(_put(store, index, f"registry.example/team/service-{number:04}:1", handler))
    store.metadata.images.put_many(records)


def wide_index(entries: int) -> Image:
    """An index with so many entries, each of a Windows build of its own."""
    shared = layer("shared by all")
    builds = [f"windows(10.0.20348.{revision})/amd64" for revision in range(1, entries)]
    return build_index([build_image(each, layers=[shared]) for each in ("linux/amd64", *builds)])


def put(store: ImageStore, image: Image, reference: str, handler: str) -> None:
    """Put one image in, as if its first manifest had been pulled."""
    store.metadata.images.put_many([_put(store, image, reference, handler)])


def _put(
    store: ImageStore, image: Image, reference: str, handler: str
) -> tuple[ImageRecord, dict[Digest, tuple[Digest, ...]]]:
    manifest = image.manifests[0]
    assert manifest.platform is not None
    parts = (manifest.config.digest, *(each.digest for each in manifest.layers))
    needed = {image.target.digest, manifest.descriptor.digest, *parts}
    for digest, raw in _bodies(image):
        path = (store.root / "content") / "blobs" / digest.algorithm / digest.encoded
        if digest in needed and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
            path.chmod(0o444)
    record = ImageRecord(
        reference=reference,
        handler=handler,
        target=image.target,
        manifest=manifest.descriptor,
        image_id=manifest.config.digest,
        platform=manifest.platform,
        wanted=str(manifest.platform),
        roots=(image.target.digest, manifest.descriptor.digest),
        content_size=sum(each.size for each in (image.target, manifest.descriptor, manifest.config, *manifest.layers)),
    )
    return record, {manifest.descriptor.digest: parts}


def _bodies(image: Image) -> Iterator[tuple[Digest, bytes]]:
    yield from ((digest, document.data) for digest, document in image.documents.items())
    yield from ((digest, b"".join(body.chunks())) for digest, body in image.blobs.items())
