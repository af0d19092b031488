"""Copies an image into a repository: blobs in parallel, then manifests, then indexes, then the name.

So a registry never has a document whose content it lacks, and a copy that ends early changes nothing under the name.
Uploaded blobs stay in the registry, and the next copy does not send them again.
"""

from __future__ import annotations

import itertools
import re
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import DigestMismatchError, InvalidInputError, NotFoundError, RegistryError
from imagestore.events import Noticed
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.media_types import Kind
from imagestore.oci.referrers import subject_of
from imagestore.store.copy.options import CopiedBlob

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.events import Observer
    from imagestore.oci.digest import Digest
    from imagestore.oci.manifest import Manifest
    from imagestore.oci.reference import Reference
    from imagestore.registry.client import RegistryClient
    from imagestore.registry.push import RepositoryWriter
    from imagestore.store.archive.index_survey import ExportedImage
    from imagestore.store.copy.options import CopyOptions
    from imagestore.store.copy.referrers import Referrer
    from imagestore.store.image_source import ImageSource
    from imagestore.store.pull.sources import Documents
    from imagestore.util.cancel import CancelToken

#: Parallel uploads, as many as containerd's.
_PARALLEL: Final = 3
#: Status codes with which registries refuse an index whose manifests they lack.
_REFUSALS: Final = frozenset({400, 404, 412, 422})
#: How a registry says that it lacks a blob of a manifest: BLOB_UNKNOWN or MANIFEST_BLOB_UNKNOWN.
_BLOB_UNKNOWN: Final = "BLOB_UNKNOWN"
#: Seconds before a manifest is written again, once for each.
_PAUSES: Final = (0.0, 2.0)
_ADDRESS: Final = re.compile(r"(?i)https?://[^/?#\s]+")


@dataclass(frozen=True, slots=True)
class RegistryTarget:
    """A copy into a registry.

    Attributes:
        reference: the name that the image gets.
    """

    client: RegistryClient
    reference: Reference
    options: CopyOptions
    observer: Observer
    cancel: CancelToken

    def write(self, image: ExportedImage, source: ImageSource, referrers: Sequence[Referrer]) -> tuple[CopiedBlob, ...]:
        """See Target.

        Raises:
            PreconditionError: no host of the registry may be pushed to.
            InvalidInputError: the registry doesn't take an index without all its manifests.
        """
        wanted = self.reference.digest
        if wanted is not None and wanted != image.target.digest:
            raise DigestMismatchError(str(self.reference), expected=str(wanted), actual=str(image.target.digest))
        manifests = [found.manifest for found in image.manifests if found.manifest is not None]
        everything = [*manifests, *(each.manifest for each in referrers)]
        blobs = self._blobs(everything)
        foreign = {child.digest for each in everything for child in each.children} - {blob.digest for blob in blobs}
        if foreign:
            self.observer(Noticed(f"{len(foreign)} foreign layers stay at the addresses that the manifest has of them"))
        with self.cancel.child() as token:
            writer = self.client.writer(self.reference, cancel=token)
            done = self._copied(source, writer, blobs, token)
            if not self.options.dry_run:
                self._write_documents(image, source, writer)
                for subject, found in itertools.groupby(referrers, lambda each: each.subject):
                    writer.referrers(subject, [(each.descriptor, each.raw) for each in found])
        return done

    def _copied(
        self,
        source: ImageSource,
        writer: RepositoryWriter,
        blobs: Sequence[Descriptor],
        token: CancelToken,
        *,
        mounts: bool = True,
    ) -> tuple[CopiedBlob, ...]:
        origin = source.reference
        is_same = mounts and source.is_registry and origin.host == self.reference.host
        mount_from = origin.path if is_same and origin.path != self.reference.path else ""

        def _copy(blob: Descriptor) -> CopiedBlob:
            if self.options.dry_run:
                return CopiedBlob(blob, 0 if writer.has(blob) else blob.size)
            try:
                done = writer.blob(blob, lambda offset: source.open(blob, offset, cancel=token), mount_from=mount_from)
            except NotFoundError as error:
                if blob.kind is Kind.FOREIGN_LAYER:
                    error.hint = "it is a foreign layer whose descriptor has no address, so only the source can have it"
                raise
            return CopiedBlob(blob, done.sent, done.mounted_from)

        with ThreadPoolExecutor(_PARALLEL, "imagestore-copy") as executor:
            steps = [executor.submit(_copy, blob) for blob in blobs]
            try:
                for step in as_completed(steps):
                    step.result()
            except BaseException:
                token.cancel("another part of the copy failed")
                executor.shutdown(cancel_futures=True)
                raise
            return tuple(step.result() for step in steps)

    def _write_documents(self, image: ExportedImage, source: ImageSource, writer: RepositoryWriter) -> None:
        below = {found.descriptor.digest: found.descriptor for found in image.manifests}
        if self.options.keeps_index:
            below |= _listed_first({index for found in image.manifests for index in found.chain}, source.documents)
        below.pop(image.target.digest, None)
        for descriptor, tag in (*((each, "") for each in below.values()), (image.target, self.reference.tag)):
            try:
                self._write(source, writer, descriptor, tag)
            except RegistryError as error:
                if descriptor.kind is Kind.INDEX and image.left_out and error.status in _REFUSALS:
                    raise self._lacking(image.left_out, writer.host, error) from error
                raise

    def _write(self, source: ImageSource, writer: RepositoryWriter, descriptor: Descriptor, tag: str) -> None:
        raw = source.documents.raw(descriptor)
        subject = subject_of(raw, f"{descriptor.kind.value} {descriptor.digest}")
        pauses = iter(_PAUSES if descriptor.kind is Kind.MANIFEST else ())
        while True:
            try:
                writer.manifest(descriptor, raw, tag=tag, subject=subject)
                return
            except RegistryError as error:
                pause = next(pauses, None) if _BLOB_UNKNOWN in error.said else None
                if pause is None:
                    raise
                self.observer(Noticed(f"{writer.host} doesn't know a blob that it had; looking for all of them again"))
            # It may need a moment to know of what was just uploaded, or have mounted or found what isn't there.
            self.cancel.wait(pause)
            blobs = self._blobs([source.documents.manifest(descriptor)])
            with self.cancel.child() as token:
                self._copied(source, writer, blobs, token, mounts=False)

    def _blobs(self, manifests: Iterable[Manifest]) -> list[Descriptor]:
        """Every blob once, the largest first; foreign layers with an address stay there unless they are wanted."""
        children = (child for manifest in manifests for child in manifest.children)
        with_all = self.options.with_foreign_layers
        # A layer that is foreign in one manifest may be an ordinary one in another.
        wanted = {child.digest: child for child in children if with_all or not _is_elsewhere(child)}
        return sorted(wanted.values(), key=lambda each: each.size, reverse=True)

    def _lacking(self, left_out: Sequence[str], host: str, error: RegistryError) -> InvalidInputError:
        return InvalidInputError(
            f"{self.reference}: {host} doesn't take an index without all its manifests; {len(left_out)} are "
            f"left out: {', '.join(left_out[:10])} ({error})",
            hint="copy all of them with --all-platforms, or one manifest alone with --platform or one handler",
        )


def _is_elsewhere(layer: Descriptor) -> bool:
    """Whether it is a foreign layer with an address of its own; without one it is only where it is copied from."""
    return layer.kind is Kind.FOREIGN_LAYER and any(_ADDRESS.match(url) for url in layer.urls)


def _listed_first(indexes: Iterable[Descriptor], documents: Documents) -> dict[Digest, Descriptor]:
    """Indexes, each after those that it lists."""
    wanted = {index.digest: index for index in indexes}
    found: dict[Digest, Descriptor] = {}

    def _add(index: Descriptor) -> None:
        for entry in documents.index(index).manifests:
            if entry.digest in wanted and entry.digest not in found:
                _add(wanted[entry.digest])
        found[index.digest] = index

    for index in wanted.values():
        if index.digest not in found:
            _add(index)
    return found
