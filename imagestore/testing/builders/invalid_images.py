"""Images that break one rule each, with the error that a good client raises for it.

Everything else is right, digests included (unless the digest is the rule), so that an error proves the rule. The rules
are those of the OCI image-spec 1.1 (descriptor.md, manifest.md, image-index.md, config.md), of RFC 8259 for JSON, and
of distribution-spec 1.1 for what a registry answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import imagestore.errors as errors
from imagestore.oci import Descriptor, Digest, media_types
from imagestore.testing.builders.bodies import BytesBody, FlippedBody, read_all
from imagestore.testing.builders.images import (
    Document,
    Entry,
    Image,
    attestation,
    build_image,
    build_index,
    render_descriptor,
)
from imagestore.testing.builders.layers import layer

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLATFORM: Final = "linux/amd64"
# More than any client should read; registries take up to four megabytes.
_HUGE: Final = 9 << 20
_DEPTH: Final = 100_000


@dataclass(frozen=True, slots=True)
class InvalidImage:
    """An image and the error that pulling it for linux/amd64 must give.

    Attributes:
        name: what is wrong, in words with dashes.
        error: the class of the error (or a base of it).
    """

    name: str
    image: Image
    error: type[errors.ImageStoreError]


def invalid_images() -> Iterator[InvalidImage]:
    """Every invalid image, in a fixed order."""
    yield from _texts()
    yield from _manifests()
    yield from _indexes()
    yield from _configs()
    yield from _contents()


def _raw(media_type: str, data: bytes, base: Image) -> Image:
    """``base`` with other bytes as its target."""
    target = Descriptor(media_type, Digest.of(data), len(data))
    documents = {**base.documents, target.digest: Document(media_type, data)}
    manifests = tuple(replace(one, descriptor=target) for one in base.manifests)
    return Image(target, documents, base.blobs, manifests)


def _text_of(image: Image) -> bytes:
    return image.documents[image.target.digest].data


def _texts() -> Iterator[InvalidImage]:
    base = build_image(_PLATFORM, seed="invalid")
    text = _text_of(base)
    nested = b'{"schemaVersion": 2, "annotations": ' + b"[" * _DEPTH + b"]" * _DEPTH + b"}"
    cases = {
        "not-json": b"not json at all",
        "empty-document": b"",
        "json-list": b"[]",
        "byte-order-mark": b"\xef\xbb\xbf" + text,
        "utf-16": text.decode().encode("utf-16"),
        "invalid-utf-8": text.replace(b"schemaVersion", b"schemaVersion\xff", 1),
        "duplicate-member": text.replace(b"{", b'{"layers": [], ', 1),
        "member-differing-by-case": text.replace(b"{", b'{"Layers": [], ', 1),
        "not-a-number": text.replace(b'"schemaVersion": 2', b'"schemaVersion": NaN', 1),
        "endless-number": text.replace(b'"schemaVersion": 2', b'"schemaVersion": 2, "x": ' + b"9" * 5000, 1),
        "deep-nesting": nested,
    }
    for name, data in cases.items():
        yield InvalidImage(name, _raw(media_types.OCI_MANIFEST, data, base), errors.DocumentError)
    huge = _raw(media_types.OCI_MANIFEST, text + b" " * _HUGE, base)
    yield InvalidImage("huge-document", huge, errors.ProtocolError)
    signed = json.dumps({"schemaVersion": 1, "name": "old", "tag": "1", "fsLayers": [], "history": []}).encode()
    yield InvalidImage("schema-1", _raw(media_types.DOCKER_SCHEMA1_SIGNED, signed, base), errors.ProtocolError)


def _manifests() -> Iterator[InvalidImage]:
    def _made(**members: object) -> Image:
        return build_image(_PLATFORM, seed="invalid", members=members)

    good = build_image(_PLATFORM, seed="invalid").manifests[0]
    config, layer = render_descriptor(good.config), render_descriptor(good.layers[0])
    cases: dict[str, dict[str, object]] = {
        "schema-version-3": {"schemaVersion": 3},
        "no-config": {"config": None},
        "no-layers": {"layers": None},
        "layers-not-a-list": {"layers": {}},
        "manifest-and-index-in-one": {"manifests": []},
        "media-type-of-an-index": {"mediaType": media_types.OCI_INDEX},
        "negative-size": {"layers": [layer | {"size": -1}]},
        "size-is-true": {"layers": [layer | {"size": True}]},
        "size-is-a-fraction": {"layers": [layer | {"size": 1.5}]},
        "size-above-64-bits": {"layers": [layer | {"size": 1 << 63}]},
        "size-is-text": {"layers": [layer | {"size": "12"}]},
        "digest-upper-case": {"layers": [layer | {"digest": str(layer["digest"]).upper().replace("SHA256", "sha256")}]},
        "digest-too-short": {"layers": [layer | {"digest": "sha256:abcd"}]},
        "digest-with-newline": {"layers": [layer | {"digest": f"{layer['digest']}\n"}]},
        "digest-with-path": {"layers": [layer | {"digest": "sha256:../../etc/passwd"}]},
        "digest-missing": {"layers": [{"mediaType": layer["mediaType"], "size": 1}]},
        "layer-null": {"layers": [None]},
        "data-contradicts-digest": {"config": config | {"data": "e30="}},
    }
    for name, members in cases.items():
        yield InvalidImage(name, _made(**members), errors.DocumentError)


def _indexes() -> Iterator[InvalidImage]:
    good = build_image(_PLATFORM, seed="invalid")
    platform = good.manifests[0].platform
    windows = "windows(10.0.20348.1970)/amd64"
    cases: dict[str, tuple[Image, type[errors.ImageStoreError]]] = {
        "empty-index": (build_index([]), errors.NoMatchingManifestError),
        "other-platforms-only": (build_index([windows, "linux/s390x"]), errors.NoMatchingManifestError),
        "attestations-only": (build_index([attestation(good)]), errors.NoMatchingManifestError),
        "index-without-list": (build_index([], members={"manifests": None}), errors.NoMatchingManifestError),
        "index-with-layers": (build_index([good], members={"layers": []}), errors.DocumentError),
        "entry-of-wrong-size": (
            build_index([Entry(good, platform, overrides={"size": good.target.size + 1})]),
            errors.SizeMismatchError,
        ),
        "entry-of-wrong-type": (
            build_index([Entry(good, platform, overrides={"mediaType": media_types.DOCKER_MANIFEST})]),
            errors.ProtocolError,
        ),
        "entry-that-is-not-there": (
            build_index([Entry(good, platform, overrides={"digest": str(Digest.of(b"absent"))})]),
            errors.ReferenceNotFoundError,
        ),
        "entry-of-unknown-algorithm": (
            build_index([Entry(good, platform, overrides={"digest": "md6:" + "0" * 64})]),
            errors.ImageStoreError,
        ),
        "too-deeply-nested-index": (_nested(good, 12), errors.DocumentError),
    }
    for name, (image, error) in cases.items():
        yield InvalidImage(name, image, error)


def _nested(image: Image, depth: int) -> Image:
    platform = image.manifests[0].platform
    for _ in range(depth):
        image = build_index([Entry(image, platform)])
    return image


def _configs() -> Iterator[InvalidImage]:
    def _made(**members: object) -> Image:
        return build_image(_PLATFORM, seed="invalid", config=members)

    yield InvalidImage("fewer-diff-ids", _made(rootfs={"type": "layers", "diff_ids": []}), errors.DocumentError)
    yield InvalidImage("diff-ids-not-a-list", _made(rootfs={"type": "layers", "diff_ids": "x"}), errors.DocumentError)
    yield InvalidImage("config-without-rootfs", _made(rootfs=None), errors.DocumentError)
    plain = [layer(name, compression="none") for name in ("lower", "upper")]
    listed = [
        {"mediaType": media_types.OCI_LAYER, "digest": str(each.digest), "size": each.body.size} for each in plain[::-1]
    ]
    reordered = build_image(_PLATFORM, layers=plain, members={"layers": listed})
    yield InvalidImage("plain-layers-in-another-order", reordered, errors.DocumentError)
    digests = [str(Digest.of(b"lower")), str(Digest.of(b"upper"))]
    yield InvalidImage("rootfs-of-unknown-type", _made(rootfs={"type": "x", "diff_ids": digests}), errors.DocumentError)


def _contents() -> Iterator[InvalidImage]:
    base = build_image(_PLATFORM, seed="invalid")
    config, layer = base.manifests[0].config, base.layers[0]

    def _swapped(digest: Digest, data: bytes) -> Image:
        return replace(base, blobs={**base.blobs, digest: BytesBody(data)})

    whole = read_all(base.blobs[layer.digest], 1 << 20)
    flipped = replace(base, blobs={**base.blobs, layer.digest: FlippedBody(base.blobs[layer.digest], 7)})
    yield InvalidImage("layer-with-flipped-byte", flipped, errors.DigestMismatchError)
    yield InvalidImage("layer-too-short", _swapped(layer.digest, whole[:-1]), errors.SizeMismatchError)
    yield InvalidImage("layer-too-long", _swapped(layer.digest, whole + b"\0"), errors.SizeMismatchError)
    yield InvalidImage(
        "config-of-other-content", _swapped(config.digest, b"x" * config.size), errors.DigestMismatchError
    )
    absent = {digest: body for digest, body in base.blobs.items() if digest != layer.digest}
    yield InvalidImage("layer-missing", replace(base, blobs=absent), errors.ReferenceNotFoundError)
    text = _text_of(base).replace(b"schemaVersion", b"schemaVersiom", 1)
    documents = {base.target.digest: Document(media_types.OCI_MANIFEST, text)}
    yield InvalidImage("manifest-of-other-content", replace(base, documents=documents), errors.IntegrityError)
