"""Publishing one image: from the store's records to an image that containerd can start, step by step under one lease.

1. The lease, new or taken over (leases).
2. For each manifest and snapshotter: which layers are unpacked already, top down.
3. The others, bottom up: bring, apply, commit (containerd_snapshots).
4. Config and manifest, with the labels by which containerd's collector keeps what they lead to.
5. The image records, that of the id first: else the CRI plugin makes one itself.
6. Wait until the CRI plugin knows the id.
7. End the lease: what nothing else keeps, such as layers that are unpacked, is collected.

Each step may be repeated; an interrupted publish is continued by the next one.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import imagestore.publish.leases as leases
from imagestore.errors import (
    ContentNotFoundError,
    DocumentError,
    ImageServiceError,
    IntegrityError,
    NotFoundError,
    ServiceUnavailableError,
)
from imagestore.oci import MAX_DOCUMENT_BYTES, Manifest, Reference, Verifier, chain_ids, config_of
from imagestore.publish.containerd_snapshots import ContainerdSnapshots, DamagedLayerError
from imagestore.publish.model import ContentWay
from imagestore.publish.snapshots import SnapshotLayer
from imagestore.store import CheckReport
from imagestore.util.cancel import CancelToken
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from imagestore.content import ContentStore
    from imagestore.oci import Descriptor, Digest
    from imagestore.publish.blobs import BlobBringer
    from imagestore.publish.containerd import Containerd
    from imagestore.publish.snapshots import SnapshotTarget
    from imagestore.publish.wanted import Owner, WantedImage
    from imagestore.store import ImageStore

log = logging.getLogger(__name__)

SNAPSHOT_LABEL: Final = "containerd.io/gc.ref.snapshot."
CONTENT_LABEL: Final = "containerd.io/gc.ref.content."
#: Layers that are brought or unpacked at a time, of all images together.
LAYERS_AT_ONCE: Final = 4
#: How long containerd's CRI plugin has to hear of a record.
KNOWN_SECONDS: Final = 10.0
#: For the end of a lease.
END_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.01
#: After which the record may have been removed, as when containerd was wiped.
_DOUBT_SECONDS: Final = 0.5
_CHUNK_BYTES: Final = 1024 * 1024


class NotRunnableError(DocumentError):
    """No container can be made of this: an artifact, or an image whose config describes no root filesystem."""


@dataclass(frozen=True, slots=True)
class PublishContext:
    """What all publishes into one containerd share.

    Attributes:
        client: of containerd.
        content: the store's.
        bringer: brings blobs.
        owner: whose records they are.
        keeps_layers: layers stay in containerd's content.
        clock: seconds since 1970.
        slots: for LAYERS_AT_ONCE.
    """

    client: Containerd
    content: ContentStore
    bringer: BlobBringer
    owner: Owner
    keeps_layers: bool
    clock: Callable[[], float]
    slots: threading.BoundedSemaphore


@dataclass(frozen=True, slots=True)
class ImageDocuments:
    """A manifest of the store, with its layers as they are unpacked."""

    descriptor: Descriptor
    manifest: Manifest
    layers: tuple[SnapshotLayer, ...]

    @property
    def chains(self) -> list[str]:
        """The chain id at each height."""
        return [str(each) for each in chain_ids(layer.diff_id for layer in self.layers)]

    @classmethod
    def read(cls, content: ContentStore, descriptor: Descriptor) -> ImageDocuments:
        """Read and verify manifest and config.

        Raises:
            NotRunnableError: no container can be made of it.
            ContentNotFoundError, IntegrityError, DocumentError: they can't be read.
        """
        raw = content.read(descriptor.digest, limit_bytes=MAX_DOCUMENT_BYTES)
        what = f"manifest {descriptor.digest}"
        manifest = Manifest.parse(raw, media_type=descriptor.media_type, what=what)
        if not manifest.is_image:
            raise NotRunnableError(what, ["it is an artifact, and has no root filesystem"])
        raw = content.read(manifest.config.digest, limit_bytes=MAX_DOCUMENT_BYTES)
        config = config_of(manifest, raw, what=f"image config {manifest.config.digest}")
        if config is None:
            raise NotRunnableError(what, ["its config describes no root filesystem"])
        pairs = zip(manifest.layers, config.diff_ids, strict=True)
        return cls(descriptor, manifest, tuple(SnapshotLayer(blob, diff_id) for blob, diff_id in pairs))


class Publication:
    """The work of publishing one image id, begun at its pull or later; used by one thread at a time.

    Args:
        context: shared by all.
        image_id: digest of the config.
        cancel: ends the work.

    Attributes:
        cancel: of who goes on with the work.
        ways: bytes of layers by the way they came.
    """

    def __init__(self, context: PublishContext, image_id: str, cancel: CancelToken) -> None:
        self._context = context
        self.image_id = image_id
        self.cancel = cancel
        self._lease = ""
        # How many layers are unpacked and held by the lease, by manifest and snapshotter.
        self._heights: dict[tuple[Digest, str], int] = {}
        # Brought, and verified by their unpacking, if that succeeds, or here.
        self._verified: set[Digest] = set()
        self.ways: Counter[ContentWay] = Counter()

    @property
    def lease(self) -> str:
        """The id of the lease, which is made when it is first needed."""
        if not self._lease:
            context = self._context
            self._lease = leases.acquire(context.client, context.owner.store_id, self.image_id, context.clock)
        return self._lease

    @property
    def has_lease(self) -> bool:
        """Whether the lease was made, and not ended."""
        return bool(self._lease)

    def targets(self, snapshotters: Sequence[str], repositories: Sequence[Reference]) -> dict[str, SnapshotTarget]:
        """Where layers of these repositories are unpacked, by snapshotter."""
        context = self._context
        return {
            snapshotter: ContainerdSnapshots(
                context.client, snapshotter, self.lease, context.bringer, repositories, self.cancel, self._brought
            )
            for snapshotter in snapshotters
        }

    def unpack(
        self, snapshotter: str, target: SnapshotTarget, documents: ImageDocuments, *, upto: int | None = None
    ) -> None:
        """Unpack the layers that aren't, or only those of the lowest ``upto``.

        Raises:
            IntegrityError: containerd unpacked other bytes than a layer's, and the store's file isn't better.
        """
        chains, place = documents.chains, (documents.descriptor.digest, snapshotter)
        if place not in self._heights:
            self._heights[place] = _height(target, chains)
        for height in range(self._heights[place], len(chains) if upto is None else upto):
            self.cancel.check()
            with self._context.slots:
                self._apply(target, chains[height - 1] if height else "", chains[height], documents.layers[height])
            self._heights[place] = height + 1

    def bring(self, wanted: WantedImage) -> None:
        """Steps 1 to 4: all that the image's records lead to.

        Raises:
            NotRunnableError: no container can be made of it.
            NotFoundError: the lease was ended, or the store doesn't have a blob.
            IntegrityError: a blob of the store is damaged.
            ImageStoreError: a step failed.
        """
        for descriptor in wanted.manifests:
            documents = ImageDocuments.read(self._context.content, descriptor)
            repositories = _repositories(wanted, descriptor)
            for snapshotter, target in self.targets(wanted.snapshotters, repositories).items():
                self.unpack(snapshotter, target, documents)
            if self._context.keeps_layers:
                self._keep_layers(documents, repositories)
            self._bring_documents(documents, wanted.snapshotters, repositories)

    def make_records(self, wanted: WantedImage, names: Collection[str]) -> None:
        """Step 5: make containerd's records of these names, or correct them; that of the id first."""
        reach("publish-records")
        for name, manifest in wanted.names.items():
            if name in names:
                self._context.client.put_image(name, manifest, wanted.labels(name, self._context.owner), self.lease)
                reach("publish-record")

    def wait_until_known(self) -> None:
        """Step 6: the CRI plugin learns of records by events, one by one; a container made before that would fail.

        Raises:
            NotFoundError: the record was removed meanwhile.
            ServiceUnavailableError: it doesn't hear of the record.
        """
        client = self._context.client
        ends_at = time.monotonic() + KNOWN_SECONDS
        doubt_at = time.monotonic() + _DOUBT_SECONDS
        while client.cri_image_id(self.image_id) != self.image_id:
            now = time.monotonic()
            if now >= doubt_at:
                if not client.images([self.image_id]):
                    raise NotFoundError(f"containerd's record {self.image_id} was removed")
                doubt_at = now + _DOUBT_SECONDS
            if now >= ends_at:
                raise ServiceUnavailableError(
                    f"containerd's CRI plugin didn't hear of {self.image_id} within {KNOWN_SECONDS:.0f} s",
                    hint="is its CRI plugin on, and the namespace k8s.io?",
                )
            self.cancel.wait(_LOOK_SECONDS)

    def end(self) -> None:
        """End the lease, after success and failure; what nothing else keeps is collected before this returns."""
        if self._lease:
            reach("publish-end")
            # Also when the publisher was closed; containerd collects before it answers.
            self._context.client.delete_lease(self._lease, is_synced=True, cancel=CancelToken(END_SECONDS))
            self._lease = ""

    def _apply(self, target: SnapshotTarget, parent: str, chain_id: str, layer: SnapshotLayer) -> None:
        try:
            target.apply(parent, chain_id, layer)
        except ServiceUnavailableError:
            raise
        except (DamagedLayerError, ImageServiceError):
            # Bytes that can't be unpacked have no status of their own. If ours are damaged, the caller repairs them; a
            # file that lay in containerd's folder may be, too.
            verify_blob(self._context.content, layer.blob, self.cancel)
            if not self._context.bringer.heal(layer.blob, self.cancel):
                raise
            target.apply(parent, chain_id, layer)

    def _keep_layers(self, documents: ImageDocuments, repositories: Sequence[Reference]) -> None:
        """Bring the layers that stay in containerd and weren't unpacked now, which would have verified them."""
        for layer in documents.layers:
            if layer.blob.digest in self._verified:
                continue
            with self._context.slots:
                way = self._context.bringer.bring_layer(layer.blob, repositories, self.lease, self.cancel)
                if way in (ContentWay.LINKED, ContentWay.OWN_FILE):
                    verify_blob(self._context.content, layer.blob, self.cancel)
            self._brought(layer, way)

    def _bring_documents(
        self, documents: ImageDocuments, snapshotters: Sequence[str], repositories: Sequence[Reference]
    ) -> None:
        """Config and manifest; their labels keep the snapshots, the config, and the layers if they stay."""
        manifest, chains = documents.manifest, documents.chains
        held = {SNAPSHOT_LABEL + snapshotter: chains[-1] for snapshotter in snapshotters} if chains else {}
        bring = self._context.bringer.bring_document
        bring(manifest.config, held, repositories, self.lease, self.cancel)
        reach("publish-config")
        labels = {f"{CONTENT_LABEL}config": str(manifest.config.digest)}
        if self._context.keeps_layers:
            labels |= {f"{CONTENT_LABEL}l.{number}": str(each.digest) for number, each in enumerate(manifest.layers)}
        bring(documents.descriptor, labels, repositories, self.lease, self.cancel)
        reach("publish-manifest")

    def _brought(self, layer: SnapshotLayer, way: ContentWay) -> None:
        self.ways[way] += layer.blob.size
        self._verified.add(layer.blob.digest)


def _height(target: SnapshotTarget, chains: Sequence[str]) -> int:
    """How many layers are unpacked."""
    # All others stand on the lowest, so of a new image this is the only question.
    if not chains or not target.has(chains[0]):
        return 0
    # Top down: the first chain that is there keeps all below it.
    return next(height for height in range(len(chains), 0, -1) if height == 1 or target.has(chains[height - 1]))


def _repositories(wanted: WantedImage, manifest: Descriptor) -> list[Reference]:
    """The repositories that a manifest came from, each once."""
    found = [Reference.parse(each.reference) for each in wanted.records if each.manifest.digest == manifest.digest]
    return list({each.name: each for each in found}.values())


def repair_image(store: ImageStore, wanted: WantedImage, cancel: CancelToken) -> bool:
    """Hash an image's blobs and fetch damaged and missing ones again; returns whether there were any.

    Raises:
        RegistryError, ImageStoreError: they can't be fetched.
    """
    damaged = {each for manifest in wanted.manifests for each in _damaged(store.content, manifest, cancel)}
    if not damaged:
        return False
    report = store.repair(CheckReport.of_damaged(damaged), cancel=cancel)
    log.warning("damaged or missing blobs fetched again", extra={"blobs": [str(each) for each in sorted(damaged)]})
    return bool(report.fetched)


def _damaged(content: ContentStore, descriptor: Descriptor, cancel: CancelToken) -> Iterator[Digest]:
    """The damaged and missing blobs of a manifest; only itself if it is one, since it doesn't say the others then."""
    if not _is_whole(content, descriptor, cancel):
        yield descriptor.digest
        return
    raw = content.read(descriptor.digest, limit_bytes=MAX_DOCUMENT_BYTES)
    manifest = Manifest.parse(raw, media_type=descriptor.media_type, what=f"manifest {descriptor.digest}")
    for blob in manifest.children:
        if not _is_whole(content, blob, cancel):
            yield blob.digest


def _is_whole(content: ContentStore, blob: Descriptor, cancel: CancelToken) -> bool:
    try:
        verify_blob(content, blob, cancel)
    except (IntegrityError, ContentNotFoundError):
        return False
    return True


def relink_layers(context: PublishContext, images: Iterable[WantedImage], cancel: CancelToken) -> None:
    """Let kept links lead to the store's files of now: a repair makes other ones. Damaged ones replace nothing."""

    def _verify(blob: Descriptor) -> None:
        verify_blob(context.content, blob, cancel)

    for manifest in {each.digest: each for image in images for each in image.manifests}.values():
        with contextlib.suppress(DocumentError, ContentNotFoundError, IntegrityError):  # publishing it says so
            for layer in ImageDocuments.read(context.content, manifest).layers:
                if context.bringer.relink(layer.blob, _verify):
                    log.info("linked again", extra={"blob": str(layer.blob.digest)})


def verify_blob(content: ContentStore, blob: Descriptor, cancel: CancelToken) -> None:
    """Hash a blob of the store.

    Raises:
        IntegrityError: it has other bytes than its digest says.
    """
    verifier = Verifier(blob.digest, blob.size)
    with content.open(blob.digest) as file:
        while chunk := file.read(_CHUNK_BYTES):
            cancel.check()
            verifier.update(chunk)
    verifier.finish()
