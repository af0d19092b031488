"""The members of an OCI layout, as containerd's export arranges them, with ``manifest.json`` for Docker next to it.

A referrer is an entry of ``index.json`` without a name, as oras writes it. Its ``subject`` says what it refers to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Verifier
from imagestore.oci.media_types import Kind
from imagestore.store.archive import layout
from imagestore.store.archive.writing import BLOB_MODE, Member

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from imagestore.content.api import ContentStore
    from imagestore.oci.digest import Digest
    from imagestore.store.archive.index_survey import ExportedImage, SurveyedManifest

    #: Gives the bytes behind a descriptor in pieces; their end is an error if they aren't what it says.
    Read = Callable[[Descriptor], Generator[bytes]]

_PIECE: Final = 1024 * 1024


def members(images: Sequence[ExportedImage], read: Read) -> list[Member]:
    """Everything that the archive has, each blob once.

    Args:
        images: what was chosen.
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
    files = [blob_member(layout.blob_name(each.digest), each, read) for each in blobs.values()]
    entries = sorted((_entry(image) for image in images), key=lambda entry: entry.annotations[layout.NAME_KEY])
    referrers = {found.descriptor.digest: found.descriptor for image in images for found in image.referrers}
    entries += [referrers[digest] for digest in sorted(referrers)]
    files += [Member.of(layout.MARK, layout.render_mark()), Member.of(layout.INDEX, layout.render_index(entries))]
    saved = _saved(images)
    if saved:
        files.append(Member.of(layout.DOCKER_MANIFEST, layout.render(saved)))
    return files


def blob_member(name: str, descriptor: Descriptor, read: Read) -> Member:
    """A blob as a file."""
    return Member(name, descriptor.size, BLOB_MODE, lambda: read(descriptor), descriptor)


def verified(descriptor: Descriptor, content: ContentStore) -> Generator[bytes]:
    """A blob's bytes in pieces of at most 1 MiB.

    Raises:
        ContentNotFoundError: it isn't in the store.
        IntegrityError: at the end, if they are not what the descriptor says.
    """
    verifier = Verifier(descriptor.digest, descriptor.size, what=f"content {descriptor.digest} at rest")
    with content.open(descriptor.digest) as blob:
        while piece := blob.read(_PIECE):
            verifier.update(piece)
            yield piece
    verifier.finish()


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
