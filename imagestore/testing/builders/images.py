"""Images in one line: manifests and indexes with configs and layers, and digests that agree.

The same call gives the same digests on every machine. ``family`` chooses OCI (image-spec 1.1) or Docker schema 2
documents over the same layers.

>>> image = build_index(["linux/amd64", "windows(10.0.20348.1970)/amd64"])
>>> [str(manifest.platform.os) for manifest in image.manifests]
['linux', 'windows']
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError, InvalidPlatformError
from imagestore.oci import ATTESTATION_TYPE, ATTESTATION_TYPE_KEY, Descriptor, Digest, media_types
from imagestore.platforms import Platform
from imagestore.testing.builders.bodies import Body, BytesBody
from imagestore.testing.builders.layers import Family, Layer, layer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


#: The empty config of artifacts (image-spec manifest.md, "Guidance for an Empty Descriptor").
EMPTY: Final = b"{}"
_EPOCH: Final = "1970-01-01T00:00:00Z"
_PLATFORM: Final = re.compile(r"([^/()]+)(?:\(([^()+]*)((?:\+[^()+]+)*)\))?/([^/]+)(?:/([^/]+))?")
_TYPES: Final = {
    "oci": (media_types.OCI_INDEX, media_types.OCI_MANIFEST, media_types.OCI_CONFIG),
    "docker": (media_types.DOCKER_LIST, media_types.DOCKER_MANIFEST, media_types.DOCKER_CONFIG),
}


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON document as a registry serves it: media type and exact bytes."""

    media_type: str
    data: bytes

    @classmethod
    def render(cls, media_type: str, body: Mapping[str, object], extra: Mapping[str, object] | None = None) -> Document:
        """Write members indented by two, in the order given; ``extra`` replaces some (None leaves one out)."""
        members = {key: value for key, value in {**body, **(extra or {})}.items() if value is not None}
        return cls(media_type, json.dumps(members, indent=2, ensure_ascii=False).encode())

    def descriptor(self, algorithm: str = "sha256") -> Descriptor:
        """What points at the document."""
        return Descriptor(self.media_type, Digest.of(self.data, algorithm), len(self.data))


@dataclass(frozen=True, slots=True)
class BuiltManifest:
    """One manifest of an image, with what it points at."""

    descriptor: Descriptor
    platform: Platform | None
    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """A target and everything below it, ready to be served.

    Attributes:
        target: index or manifest.
        documents: indexes and manifests by digest.
        blobs: configs and layers by digest; a foreign layer may be missing on purpose.
        manifests: every image manifest below the target, in index order.
    """

    target: Descriptor
    documents: Mapping[Digest, Document] = field(hash=False)
    blobs: Mapping[Digest, Body] = field(hash=False)
    manifests: tuple[BuiltManifest, ...] = ()

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """Distinct layers of all manifests, in order of appearance."""
        return tuple({one.digest: one for manifest in self.manifests for one in manifest.layers}.values())


@dataclass(frozen=True, slots=True)
class Entry:
    """An image as an entry of an index, when its descriptor should differ from the usual.

    Attributes:
        image: what the entry points at; an index makes a nested index.
        platform: the platform written into the entry; None writes none.
        annotations: of the entry.
        overrides: members of the descriptor to replace (or, with the value None, to leave out).
    """

    image: Image
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    overrides: Mapping[str, object] = field(default_factory=dict, hash=False)


def build_image(
    platform: Platform | str = "linux/amd64",
    *,
    seed: str = "image",
    layers: Sequence[Layer] | None = None,
    family: Family = "oci",
    algorithm: str = "sha256",
    config: Mapping[str, object] | None = None,
    members: Mapping[str, object] | None = None,
) -> Image:
    """One manifest with config and layers.

    Args:
        platform: of the config, and of an index entry for this image.
        seed: decides the layers when none are given (two of them).
        layers: instead; share them between images by passing the same ones.
        algorithm: of the manifest's and the config's digests.
        config, members: members of the image config and of the manifest to add or replace (None leaves one out).

    Raises:
        InvalidPlatformError: the platform can't be read.
        InvalidInputError: unknown family.
    """
    wanted = read_platform(platform) if isinstance(platform, str) else platform
    _, manifest_type, config_type = _types(family)
    chosen = _default_layers(wanted, seed) if layers is None else tuple(layers)
    document = _config_document(config_type, wanted, chosen, config)
    config_part = document.descriptor(algorithm)
    layer_parts = tuple(
        Descriptor(one.media_type_in(family), one.digest, one.body.size, urls=one.urls) for one in chosen
    )
    body = {
        "schemaVersion": 2,
        "mediaType": manifest_type,
        "config": render_descriptor(config_part),
        "layers": [render_descriptor(part) for part in layer_parts],
    }
    manifest = Document.render(manifest_type, body, members)
    target = manifest.descriptor(algorithm)
    blobs: dict[Digest, Body] = {config_part.digest: BytesBody(document.data)}
    blobs.update({one.digest: one.body for one in chosen if one.is_served})
    built = BuiltManifest(target, wanted, config_part, layer_parts)
    return Image(target, {target.digest: manifest}, blobs, (built,))


def build_index(
    platforms: Sequence[Platform | str | Image | Entry],
    *,
    seed: str = "image",
    shared: Sequence[Layer] = (),
    family: Family = "oci",
    algorithm: str = "sha256",
    attestations: bool = False,
    members: Mapping[str, object] | None = None,
) -> Image:
    """An index of images.

    Args:
        platforms: a platform makes an image for it; an Image or Entry is taken as it is.
        seed, family, algorithm: as in build_image(), for the images made here too.
        shared: layers put in front of those of every image made here.
        attestations: adds an attestation entry per image, at the end, as build tools do.
        members: members of the index to add or replace (None leaves one out).

    Raises:
        InvalidPlatformError: a platform can't be read.
        InvalidInputError: unknown family.
    """
    entries = [_entry_of(item, seed, tuple(shared), family, algorithm) for item in platforms]
    if attestations:
        entries += [attestation(entry.image) for entry in entries if entry.image.manifests]
    index_type = _types(family)[0]
    body = {"schemaVersion": 2, "mediaType": index_type, "manifests": [_render_entry(one) for one in entries]}
    document = Document.render(index_type, body, members)
    target = document.descriptor(algorithm)
    documents = {target.digest: document}
    blobs: dict[Digest, Body] = {}
    manifests: list[BuiltManifest] = []
    for entry in entries:
        documents.update(entry.image.documents)
        blobs.update(entry.image.blobs)
        if entry.annotations.get(ATTESTATION_TYPE_KEY) != ATTESTATION_TYPE:
            manifests += entry.image.manifests
    return Image(target, documents, blobs, tuple(manifests))


def _render_entry(entry: Entry) -> dict[str, object]:
    part = replace(entry.image.target, platform=entry.platform, annotations=entry.annotations)
    return {key: value for key, value in {**render_descriptor(part), **entry.overrides}.items() if value is not None}


def attestation(image: Image, *, family: Family = "oci") -> Entry:
    """An attestation entry for an image, as build tools put it into the index: platform ``unknown/unknown``."""
    about = str(image.target.digest)
    statement = json.dumps({"_type": "https://in-toto.io/Statement/v0.1", "subject": [{"digest": about}]}).encode()
    digest = Digest.of(statement)
    part = Layer(BytesBody(statement), digest, digest, "none", media_type="application/vnd.in-toto+json")
    unknown = Platform("unknown", "unknown")
    marks = {"vnd.docker.reference.digest": about, ATTESTATION_TYPE_KEY: ATTESTATION_TYPE}
    return Entry(build_image(unknown, layers=[part], family=family), unknown, marks)


def build_artifact(
    artifact_type: str,
    files: Mapping[str, bytes],
    *,
    subject: Descriptor | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Image:
    """An artifact: a manifest with the empty config, and a blob for each of the ``files``, given as title to content.

    ``subject`` is the manifest that it refers to (image-spec manifest.md, artifacts).
    """
    config = replace(Document(media_types.OCI_EMPTY, EMPTY).descriptor(), data=EMPTY)
    parts = [
        replace(
            Document("application/octet-stream", data).descriptor(),
            annotations={"org.opencontainers.image.title": name},
        )
        for name, data in sorted(files.items())
    ]
    body: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": media_types.OCI_MANIFEST,
        "artifactType": artifact_type,
        "config": render_descriptor(config),
        "layers": [render_descriptor(part) for part in parts or [config]],
    }
    if subject is not None:
        body["subject"] = render_descriptor(replace(subject, platform=None))
    if annotations:
        body["annotations"] = dict(annotations)
    document = Document.render(media_types.OCI_MANIFEST, body)
    target = replace(document.descriptor(), artifact_type=artifact_type)
    blobs: dict[Digest, Body] = {config.digest: BytesBody(EMPTY)}
    blobs.update({Digest.of(data): BytesBody(data) for data in files.values()})
    return Image(target, {target.digest: document}, blobs, (BuiltManifest(target, None, config, tuple(parts)),))


def render_descriptor(part: Descriptor) -> dict[str, object]:
    """A descriptor as a JSON object, empty members left out."""
    out: dict[str, object] = {"mediaType": part.media_type, "digest": str(part.digest), "size": part.size}
    if part.platform is not None:
        out["platform"] = render_platform(part.platform)
    if part.annotations:
        out["annotations"] = dict(part.annotations)
    if part.urls:
        out["urls"] = list(part.urls)
    if part.data is not None:
        out["data"] = base64.b64encode(part.data).decode()
    if part.artifact_type:
        out["artifactType"] = part.artifact_type
    return out


def render_platform(platform: Platform) -> dict[str, object]:
    """A platform as a JSON object, empty members left out."""
    members: dict[str, object] = {"architecture": platform.architecture, "os": platform.os}
    members |= {"os.version": platform.os_version, "os.features": list(platform.os_features)}
    members["variant"] = platform.variant
    return {key: value for key, value in members.items() if value}


def read_platform(text: str) -> Platform:
    """Read ``os(version+feature)/architecture/variant`` literally: nothing is normalised, the host fills no gaps.

    Tests need platforms exactly as they spell them, and must not depend on the parser that they test.

    >>> read_platform("windows(10.0.20348.2402+win32k)/amd64").os_features
    ('win32k',)

    Raises:
        InvalidPlatformError: not of this form.
    """
    found = _PLATFORM.fullmatch(text)
    if found is None:
        raise InvalidPlatformError(
            f"platform {text!r}: expected os/architecture, os/architecture/variant or os(version)/architecture"
        )
    system, version, features, architecture, variant = found.groups()
    names = tuple(features.split("+")[1:]) if features else ()
    return Platform(system, architecture, variant or "", version or "", names)


def _entry_of(
    item: Platform | str | Image | Entry, seed: str, shared: tuple[Layer, ...], family: Family, algorithm: str
) -> Entry:
    if isinstance(item, Entry):
        return item
    if isinstance(item, Image):
        return Entry(item, item.manifests[0].platform if len(item.manifests) == 1 else None)
    platform = read_platform(item) if isinstance(item, str) else item
    layers = (*shared, *_default_layers(platform, seed))
    return Entry(build_image(platform, layers=layers, family=family, algorithm=algorithm), platform)


def _types(family: Family) -> tuple[str, str, str]:
    if family not in _TYPES:
        raise InvalidInputError(f"family {family!r}: expected one of {', '.join(_TYPES)}")
    return _TYPES[family]


def _default_layers(platform: Platform, seed: str) -> tuple[Layer, ...]:
    name = "-".join(
        part for part in (seed, platform.os, platform.os_version, platform.architecture, platform.variant) if part
    )
    is_windows = platform.os == "windows"
    return (
        layer(f"{name}-base", size=4096, windows=is_windows),
        layer(f"{name}-top", size=1024, windows=is_windows),
    )


def _config_document(
    media_type: str, platform: Platform, layers: Sequence[Layer], extra: Mapping[str, object] | None
) -> Document:
    body: dict[str, object] = {"created": _EPOCH, **render_platform(platform)}
    body["config"] = {"Env": ["PATH=/usr/bin:/bin"], "Cmd": ["/bin/true"]}
    body["rootfs"] = {"type": "layers", "diff_ids": [str(one.diff_id) for one in layers]}
    body["history"] = [{"created": _EPOCH, "created_by": f"layer {number}"} for number in range(1, len(layers) + 1)]
    return Document.render(media_type, body, extra)
