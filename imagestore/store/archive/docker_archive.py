"""Reading a docker-archive: what ``docker save`` writes (moby image-spec 1.2).

``manifest.json`` lists images: the file of the config, tags, and the files of the layers. There is no manifest as a
registry has one, so one is made: Docker's schema 2, byte for byte the one that containerd's import makes.

A layer that isn't compressed is kept so, and its digest is the diff id that the config states; the import verifies it.
A layer in gzip or zstd is kept too; its digest is computed, and the archive inside is compared with the diff id. No
manifest can name bzip2 or xz, so such a layer is stored without its compression. Layers of old archives may be symbolic
links to files of the same archive.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from imagestore.errors import (
    DigestMismatchError,
    DocumentError,
    IntegrityError,
    InvalidDigestError,
    InvalidReferenceError,
    NotFoundError,
)
from imagestore.oci import layout, media_types
from imagestore.oci.decode import MAX_DOCUMENT_BYTES, decode, refuse_case_variants
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest, Verifier, new_hash
from imagestore.oci.image_config import ImageConfig
from imagestore.oci.reference import Reference
from imagestore.store.archive import foreign_layers, tar
from imagestore.store.archive.compressions import compression_of, plain
from imagestore.store.archive.contents import ArchiveContents, ArchiveOrigin, grouped
from imagestore.store.archive.index_survey import survey
from imagestore.store.archive.source import read

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from imagestore.store.archive.contents import ArchiveImage
    from imagestore.store.archive.index_survey import Look
    from imagestore.store.archive.source import Source
    from imagestore.store.pull.choice import Choice
    from imagestore.store.pull.sources import Documents
    from imagestore.util.cancel import CancelToken

#: How Docker shows that an image has no name, and others.
_NO_TAGS: Final = ("<none>:<none>", "")
#: Media types of layers that are kept with their compression.
_KEPT: Final = {"gzip": media_types.DOCKER_LAYER_GZIP, "zstd": media_types.DOCKER_LAYER_ZSTD}
_MEMBERS: Final = frozenset({"Config", "RepoTags", "Layers", "Parent", "LayerSources"})
_MAX_IMAGES: Final = 1000
_MAX_LAYERS: Final = 1000
#: Of all images together.
_MAX_TAGS: Final = 10_000
_MAX_LINKS: Final = 8
_HEX: Final = re.compile(r"(?:.*/)?(?:sha256:)?([a-f0-9]{64})(?:\.json)?")


@dataclass(frozen=True, slots=True)
class SavedImage:
    """An entry of ``manifest.json``: file names of config and layers (lowest first), and tags.

    Attributes:
        foreign: layers that the archive may have left out, by diff id.
    """

    config: str
    tags: tuple[str, ...]
    layers: tuple[str, ...]
    foreign: Mapping[Digest, Descriptor] = field(default_factory=dict)


def find_images(source: Source, cancel: CancelToken) -> ArchiveContents:
    """Find the images of a docker-archive; reads layers that are compressed.

    Raises:
        DocumentError: ``manifest.json`` or a config breaks the rules, or names files that aren't there.
        IntegrityError: a config isn't what its name says, or a compressed layer not what its diff id says.
    """
    reader = _ImageReader(source, cancel)
    entries: list[tuple[Reference | None, str, Descriptor]] = []
    for saved in _listed(source):
        cancel.check()
        target = reader.target(saved)
        entries += [(*name, target) for name in _names(saved.tags)]
    return ArchiveContents(grouped(entries), ArchiveOrigin(source, reader.places, reader.made, reader.packed))


def _listed(source: Source) -> list[SavedImage]:
    raw = read(source, layout.DOCKER_MANIFEST, limit_bytes=MAX_DOCUMENT_BYTES)
    return parse(raw, f"{source.what}: {layout.DOCKER_MANIFEST}")


def parse(raw: bytes, what: str) -> list[SavedImage]:
    """Read ``manifest.json``.

    Raises:
        DocumentError: says where it breaks the rules.
    """
    # The bounded decoder reads objects, and this document is a list.
    document = decode(b'{"images":' + raw + b"}", what)
    images = document.get("images")
    if set(document) == {"images"} and isinstance(images, dict) and "schemaVersion" in images:
        _refuse(
            what,
            "is an image manifest, as 'skopeo copy ... dir:' writes it; expected a list of images",
            hint="copy the folder with skopeo: skopeo copy dir:FOLDER oci-archive:FILE",
        )
    if set(document) != {"images"} or not isinstance(images, list):
        _refuse(what, "expected a list of images")
    if not 0 < len(images) <= _MAX_IMAGES:
        _refuse(what, f"lists {len(images)} images, expected 1 to {_MAX_IMAGES}")
    found = [_saved(image, f"$[{number}]", what) for number, image in enumerate(images)]
    tags = sum(len(image.tags) for image in found)
    if tags > _MAX_TAGS:
        _refuse(what, f"lists {tags} tags, more than the {_MAX_TAGS} allowed")
    return found


def _saved(value: Any, path: str, what: str) -> SavedImage:
    if not isinstance(value, dict):
        _refuse(what, f"{path}: expected an object")
    refuse_case_variants(value, _MEMBERS, what, path=path)
    config = value.get("Config")
    if not isinstance(config, str):
        _refuse(what, f"{path}.Config: expected the name of a file")
    tags = _texts(value.get("RepoTags"), f"{path}.RepoTags", what)
    layers = _texts(value.get("Layers"), f"{path}.Layers", what)
    if len(layers) > _MAX_LAYERS:
        _refuse(what, f"{path}.Layers: lists {len(layers)} layers, more than the {_MAX_LAYERS} allowed")
    return SavedImage(config, tags, layers, foreign_layers.described(value.get("LayerSources"), what))


def _texts(value: Any, path: str, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        _refuse(what, f"{path}: expected a list of texts")
    return tuple(value)


def _names(tags: tuple[str, ...]) -> Iterator[tuple[Reference | None, str]]:
    """References, or None and what there is instead of one."""
    named = [tag for tag in tags if tag not in _NO_TAGS]
    if not named:
        yield None, ""
    for tag in named:
        try:
            yield Reference.parse(tag), ""
        except InvalidReferenceError:
            yield None, tag


class _ImageReader:
    """Makes the manifests of an archive's images; layers and configs that several images share are read once."""

    def __init__(self, source: Source, cancel: CancelToken) -> None:
        self._source = source
        self._cancel = cancel
        self._layers: dict[tuple[str, Digest], Descriptor] = {}
        self._configs: dict[str, tuple[Descriptor, tuple[Digest, ...]]] = {}
        #: See ArchiveOrigin.
        self.places: dict[Digest, str] = {}
        self.made: dict[Digest, bytes] = {}
        self.packed: set[Digest] = set()

    def target(self, saved: SavedImage) -> Descriptor:
        """The descriptor of an image's manifest, which is made."""
        source = self._source
        config, diff_ids = self._config(saved)
        self.places[config.digest] = _resolve(source, saved.config)
        layers = []
        for name, diff_id in zip(saved.layers, diff_ids, strict=True):
            place, layer = self._place_of(name, diff_id, saved.foreign.get(diff_id))
            self._layers[place, diff_id] = layer
            self.places[layer.digest] = place
            if layer.digest == diff_id and _compression(source, place):
                self.packed.add(diff_id)
            layers.append(layer)
        manifest = layout.render_docker_manifest(config, layers)
        digest = Digest.of(manifest)
        self.made[digest] = manifest
        return Descriptor(media_types.DOCKER_MANIFEST, digest, len(manifest))

    def _place_of(self, name: str, diff_id: Digest, foreign: Descriptor | None) -> tuple[str, Descriptor]:
        """Where a layer is; a foreign one is verified at once, since there may be something else in its place."""
        try:
            place = _resolve(self._source, name)
            known = self._layers.get((place, diff_id))
            return place, known or self._layer(place, diff_id, is_verified=foreign is not None)
        except (DocumentError, IntegrityError) as error:
            if foreign is None:
                raise
            fault = foreign_layers.left_out(foreign)
            raise DocumentError(f"{self._source.what}: {name[:200]}", [fault], hint=foreign_layers.HINT) from error

    def _config(self, saved: SavedImage) -> tuple[Descriptor, tuple[Digest, ...]]:
        """The config of an image, and its diff ids, which are as many as the image's layers."""
        place = _resolve(self._source, saved.config)
        found = self._configs.get(place)
        raw = b"" if found is not None else read(self._source, place, limit_bytes=MAX_DOCUMENT_BYTES)
        digest = Digest.of(raw) if found is None else found[0].digest
        stated = _HEX.fullmatch(saved.config.replace("\\", "/"))
        if stated is not None and stated.group(1) != digest.encoded:
            what = f"{self._source.what}: {saved.config}"
            raise DigestMismatchError(what, expected=f"sha256:{stated.group(1)}", actual=str(digest))
        what = f"{self._source.what}: image config {digest}"
        if found is None:
            # Of all that it says no more is kept: there may be a thousand large ones.
            diff_ids = ImageConfig.parse(raw, what=what).diff_ids
            found = self._configs[place] = Descriptor(media_types.DOCKER_CONFIG, digest, len(raw)), diff_ids
        if len(found[1]) != len(saved.layers):
            _refuse(what, f"$.rootfs.diff_ids: {len(found[1])} diff ids for {len(saved.layers)} layers")
        return found

    def _layer(self, place: str, diff_id: Digest, *, is_verified: bool = False) -> Descriptor:
        size = self._source.sizes()[place]
        kind = _compression(self._source, place)
        if not kind and not is_verified:
            return Descriptor(media_types.DOCKER_LAYER, diff_id, size)
        what = f"{self._source.what}: {place}"
        packed = new_hash("sha256")

        def _hashed() -> Generator[bytes]:
            for piece in self._source.chunks(place):
                self._cancel.check()  # of what is empty nothing comes out
                packed.update(piece)
                yield piece

        verifier = Verifier(diff_id, what=f"{what} uncompressed")
        with contextlib.closing(plain(_hashed(), what=what, check=self._cancel.check)) as pieces:
            for piece in pieces:
                verifier.update(piece)
        verifier.finish()
        media_type = _KEPT.get(kind)
        if media_type is None:
            return Descriptor(media_types.DOCKER_LAYER, diff_id, verifier.received)
        return Descriptor(media_type, Digest("sha256", packed.hexdigest()), size)


def _compression(source: Source, place: str) -> str:
    return compression_of(next(source.chunks(place), b""))


def _spelled(source: Source, name: str) -> str:
    """A name of ``manifest.json`` as the archive has it: on Windows, Docker wrote backslashes between folders."""
    found = source.place(name)
    if "\\" not in name or name.startswith("\\") or found in source.sizes() or found in source.links:
        return found
    return source.place(name.replace("\\", "/"))


def _resolve(source: Source, name: str) -> str:
    """The file behind a name, through symbolic links that stay inside the archive."""
    sizes = source.sizes()
    found = _spelled(source, name)
    for _ in range(_MAX_LINKS):
        if found in sizes:
            return found
        link = source.links.get(found, "/")
        if link.startswith("/"):
            break
        found = tar.clean(posixpath.normpath(posixpath.join(posixpath.dirname(found), link)))
    raise DocumentError(source.what, [f"has no file {name[:200]!r}, which {layout.DOCKER_MANIFEST} names"])


def _refuse(what: str, fault: str, *, hint: str = "") -> NoReturn:
    raise DocumentError(what, [fault], hint=hint)


class DockerManifestComparison:
    """Finds out whether ``manifest.json`` describes other images than the layout next to it.

    The layout counts, as in containerd; but ``docker load`` goes by ``manifest.json``, and would have the other image.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        #: The files of configs by name.
        self._configs: dict[Reference, list[str]] = {}
        with contextlib.suppress(DocumentError):  # docker can't load it either
            for saved in _listed(source):
                with contextlib.suppress(DocumentError):
                    place = _resolve(source, saved.config)
                    for name, _ in _names(saved.tags):
                        if name is not None:
                            self._configs.setdefault(name, []).append(place)

    def differences(self, image: ArchiveImage, choice: Choice, documents: Documents, look: Look) -> Iterator[str]:
        """A note if none of the layout's manifests of a name has the config that ``manifest.json`` gives it."""
        ours = choice.manifest.config.digest
        for place in self._configs.get(image.name, ()) if image.name is not None else ():
            try:
                raw = read(self._source, place, limit_bytes=MAX_DOCUMENT_BYTES)
                # It describes one platform of those that an index has.
                is_same = _is_any(raw, [ours]) or _is_any(raw, _configs(image, documents, look))
            except (DocumentError, IntegrityError, NotFoundError, InvalidDigestError):
                continue
            if not is_same:
                yield (
                    f"{self._source.what}: {layout.INDEX} and {layout.DOCKER_MANIFEST} describe different images as "
                    f"{image.name}: the one with config {ours} is imported, by {layout.INDEX}; the other's config is "
                    f"{Digest.of(raw)}"
                )


def _configs(image: ArchiveImage, documents: Documents, look: Look) -> list[Digest]:
    found = [each.manifest for entry in image.entries for each in survey(entry, documents, look)]
    return [manifest.config.digest for manifest in found if manifest is not None]


def _is_any(raw: bytes, configs: list[Digest]) -> bool:
    return any(each.is_verifiable and Digest.of(raw, each.algorithm) == each for each in configs)
