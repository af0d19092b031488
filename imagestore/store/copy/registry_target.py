"""Copies an image into a repository: blobs in parallel, then manifests, then indexes, then the name.

So a registry never has a document whose content it lacks, and a copy that ends early changes nothing under the name.
Uploaded blobs stay in the registry, and the next copy does not send them again.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import DigestMismatchError, InvalidInputError, RegistryError
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.media_types import Kind
from imagestore.oci.referrers import subject_of
from imagestore.registry.events import Noticed
from imagestore.store.copy.options import CopiedBlob, CopyReport
from imagestore.store.copy.referrers import referrers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.oci.manifest import Manifest
    from imagestore.oci.reference import Reference
    from imagestore.registry.client import RegistryClient
    from imagestore.registry.events import Observer
    from imagestore.registry.push import RepositoryWriter
    from imagestore.store.copy.options import CopyOptions
    from imagestore.store.copy.sources import CopySource
    from imagestore.util.cancel import CancelToken

#: Parallel uploads, as many as containerd's.
_PARALLEL: Final = 3
#: Status codes with which registries refuse an index whose manifests they lack.
_REFUSALS: Final = frozenset({400, 404, 412, 422})


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

    def run(self, source: CopySource) -> CopyReport:
        """Copy.

        Raises:
            PreconditionError: no host of the registry may be pushed to.
            InvalidInputError: the registry doesn't take an index without all its manifests.
        """
        image = source.image
        wanted = self.reference.digest
        if wanted is not None and wanted != image.target.digest:
            raise DigestMismatchError(str(self.reference), expected=str(wanted), actual=str(image.target.digest))
        referrers = referrers_of(source, observer=self.observer) if self.options.has_referrers else ()
        manifests = [found.manifest for found in image.manifests if found.manifest is not None]
        with self.cancel.child() as token:
            writer = self.client.writer(self.reference, cancel=token)
            blobs = self._blobs(manifests, [each.manifest for each in referrers])
            done = self._copied(source, writer, blobs, token)
            if not self.options.is_dry_run:
                self._write_documents(source, writer)
                for subject, found in itertools.groupby(referrers, lambda each: each.subject):
                    writer.referrers(subject, [(each.descriptor, each.raw) for each in found])
        return CopyReport(
            str(self.reference),
            image.target,
            image.platforms,
            image.left_out,
            done,
            len(referrers),
            self.options.is_dry_run,
        )

    def _blobs(self, manifests: Iterable[Manifest], others: Iterable[Manifest]) -> list[Descriptor]:
        """Every blob once, the largest first; foreign layers, which no registry stores, are left out."""
        children = [child for manifest in (*manifests, *others) for child in manifest.children]
        wanted = {child.digest: child for child in children if child.kind is not Kind.FOREIGN_LAYER}
        # A layer that is foreign in one manifest may be an ordinary one in another.
        foreign = {child.digest for child in children} - wanted.keys()
        if foreign:
            self.observer(Noticed(f"{len(foreign)} foreign layers stay at the addresses that the manifest has of them"))
        return sorted(wanted.values(), key=lambda each: each.size, reverse=True)

    def _copied(
        self, source: CopySource, writer: RepositoryWriter, blobs: Sequence[Descriptor], token: CancelToken
    ) -> tuple[CopiedBlob, ...]:
        origin = source.image.reference
        is_same = source.registry is not None and origin.host == self.reference.host
        mount_from = origin.path if is_same and origin.path != self.reference.path else ""

        def _copy(blob: Descriptor) -> CopiedBlob:
            if self.options.is_dry_run:
                return CopiedBlob(blob, 0 if writer.has(blob) else blob.size)
            done = writer.blob(blob, lambda offset: source.open(blob, offset, cancel=token), mount_from=mount_from)
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

    def _write_documents(self, source: CopySource, writer: RepositoryWriter) -> None:
        image = source.image
        depths = [(depth, index) for found in image.manifests for depth, index in enumerate(found.chain)]
        chain = {index.digest: index for _, index in sorted(depths, key=lambda each: each[0], reverse=True)}
        below = {found.descriptor.digest: found.descriptor for found in image.manifests}
        if self.options.keeps_index:
            # Indexes that are listed by others come before these.
            below |= chain
        below.pop(image.target.digest, None)
        for descriptor in below.values():
            self._write(source, writer, descriptor, "")
        self._write(source, writer, image.target, self.reference.tag)

    def _write(self, source: CopySource, writer: RepositoryWriter, descriptor: Descriptor, tag: str) -> None:
        raw = source.documents.raw(descriptor)
        try:
            subject = subject_of(raw, f"{descriptor.kind.value} {descriptor.digest}")
            writer.manifest(descriptor, raw, tag=tag, subject=subject)
        except RegistryError as error:
            left_out = source.image.left_out
            if descriptor.kind is not Kind.INDEX or not left_out or error.status not in _REFUSALS:
                raise
            raise InvalidInputError(
                f"{self.reference}: {writer.host} doesn't take an index without all its manifests; {len(left_out)} are "
                f"left out: {', '.join(left_out[:10])} ({error})",
                hint="copy all of them with --all-platforms, or one manifest alone with --platform or one handler",
            ) from error
