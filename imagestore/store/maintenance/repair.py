"""Repair: fetch again what is damaged or missing, and only that; then hash what came.

A record's documents come first, since only they say what else it needs. A damaged blob that no record needs is deleted:
the next pull would take it as whole. What the check couldn't read is read once more, and fetched or deleted only if the
disk still can't read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageStoreError, IntegrityError, OperationCancelledError, StoreError
from imagestore.metadata.records import HolderKind
from imagestore.oci.decode import limit_of
from imagestore.oci.media_types import Kind
from imagestore.oci.reference import Reference
from imagestore.store import leases
from imagestore.store.maintenance.check import FaultKind
from imagestore.store.maintenance.hashing import is_whole
from imagestore.store.maintenance.why import explain, held_documents
from imagestore.store.pull.fetch import Fetcher

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.content.api import ContentStore
    from imagestore.events import Observer
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.manifest import Manifest
    from imagestore.registry.client import RegistryClient
    from imagestore.store.leases import HeldLease
    from imagestore.store.maintenance.check import CheckReport
    from imagestore.util.cancel import CancelToken


#: What to do about faults that fetching can't repair.
_STAYING: Final = {
    FaultKind.RECORD_WRONG: "remove the image with 'imagestore rmi' and pull it again",
    FaultKind.DATABASE_DAMAGED: "run 'imagestore check --rebuild'",
}


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was repaired.

    Attributes:
        fetched: blobs that were fetched again and are whole now.
        bytes_fetched: over the network.
        deleted: damaged or unreadable blobs that no record needs.
        edges: manifests whose edges were written again.
        failures: (record or digest, reason) of what could not be repaired.
    """

    fetched: tuple[Digest, ...]
    bytes_fetched: int
    deleted: tuple[Digest, ...]
    edges: tuple[Digest, ...]
    failures: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Repairer:
    """One repair; what was repaired before a cancellation stays repaired."""

    metadata: MetadataStore
    content: ContentStore
    client: RegistryClient
    observer: Observer
    cancel: CancelToken
    _bad: set[Digest] = field(default_factory=set)
    _fetched: list[Digest] = field(default_factory=list)
    _bytes: int = 0
    _edges: list[Digest] = field(default_factory=list)
    _failures: list[tuple[str, str]] = field(default_factory=list)

    def run(self, report: CheckReport) -> RepairReport:
        """Repair what a check found.

        Raises:
            StoreError: the store can't be written.
            OperationCancelledError: cancelled.
        """
        self._bad = {*report.damaged, *report.unreadable}
        if report.faults:
            for record in self.metadata.images.find():
                self._repair(record)
        reported = {subject for subject, _ in self._failures}
        # Fetching can't repair these; the report must say that they stay.
        self._failures += [
            (each.subject, f"{each.detail}; {_STAYING[each.kind]}")
            for each in report.faults
            if each.kind in _STAYING and each.subject not in reported
        ]
        deleted = tuple(digest for digest in sorted(self._bad) if self._has_deleted(digest, report))
        return RepairReport(tuple(self._fetched), self._bytes, deleted, tuple(self._edges), tuple(self._failures))

    def _has_deleted(self, digest: Digest, report: CheckReport) -> bool:
        """Delete a bad blob that nothing holds, and return whether it was; a failure goes into the report."""
        try:
            is_doubtful = digest in report.unreadable and not self.metadata.graph.is_held(digest)
            if is_doubtful and is_whole(self.content, digest):
                return False
            with self.metadata.exclusive():
                if not self.metadata.graph.is_held(digest):
                    self.content.delete(digest)
                    return True
        except StoreError as error:
            self._failures.append((str(digest), str(error)))
            return False
        self._report_kept(digest, "can't be read" if digest in report.unreadable else "is damaged")
        return False

    def _repair(self, record: ImageRecord) -> None:
        self.cancel.check()
        try:
            with leases.held(self.metadata, purpose="repair") as held:
                held.hold([*record.roots, record.image_id])
                for document in held_documents(record, lambda descriptor: self._read(record, descriptor, held)):
                    if document.error is not None:
                        raise document.error
                    if document.manifest is not None:
                        self._repair_below(record, document.digest, document.manifest, held)
        except OperationCancelledError:
            raise
        except ImageStoreError as error:
            self._failures.append((f"{record.reference} ({record.handler})", str(error)))

    def _read(self, record: ImageRecord, descriptor: Descriptor, held: HeldLease) -> bytes:
        """A document, repaired first."""
        if self._is_bad(descriptor):
            self._fetch(record, descriptor, held)
        return self.content.read(descriptor.digest, limit_bytes=limit_of(descriptor.kind))

    def _repair_below(self, record: ImageRecord, parent: Digest, manifest: Manifest, held: HeldLease) -> None:
        """Repair what a manifest points at, and its edges."""
        children = [child.digest for child in manifest.children]
        held.hold(children)
        for child in manifest.children:
            if self._is_bad(child):
                self._fetch(record, child, held)
        self._repair_edges(parent, children)

    def _report_kept(self, digest: Digest, fault: str) -> None:
        """Report a bad blob of no record: nothing says where it can be fetched."""
        holders = [each.holder for each in explain(self.metadata, digest)]
        if any(holder.kind is HolderKind.IMAGE for holder in holders):
            return  # the record's own failure says why
        names = ", ".join(f"{holder.kind.value} {holder.name}" for holder in holders)
        self._failures.append((str(digest), f"{fault}, kept by {names}, and no image says where it came from"))

    def _is_bad(self, descriptor: Descriptor) -> bool:
        if descriptor.digest in self._bad or not self.content.exists(descriptor.digest):
            return True
        return self.content.info(descriptor.digest).size != descriptor.size

    def _fetch(self, record: ImageRecord, descriptor: Descriptor, held: HeldLease) -> None:
        # The check may be hours old; a pull or another repair may have brought the blob since.
        if is_whole(self.content, descriptor.digest):
            self._bad.discard(descriptor.digest)
            return
        reference = Reference.parse(record.reference)
        with self.content.small_blobs(self.cancel) as small_blobs:
            fetcher = Fetcher(self.content, self.client, reference, self.observer, held.renew, small_blobs)
            if descriptor.kind in (Kind.INDEX, Kind.MANIFEST):
                raw = self.client.document(reference, descriptor, cancel=self.cancel)
                self.content.delete_damaged(descriptor.digest)
                fetcher.keep(descriptor, raw, cancel=self.cancel)
                self._bytes += len(raw)
            else:
                # The name must be free before the right bytes can take it.
                self.content.delete_damaged(descriptor.digest)
                self._bytes += fetcher.fetch(descriptor, cancel=self.cancel)
        self.content.make_durable({descriptor.digest.algorithm})
        if not is_whole(self.content, descriptor.digest):
            raise IntegrityError(f"{descriptor.digest}: fetched again, and its bytes on disk are still not right")
        self._bad.discard(descriptor.digest)
        self._fetched.append(descriptor.digest)

    def _repair_edges(self, parent: Digest, children: Iterable[Digest]) -> None:
        wanted = set(children)
        with self.metadata.exclusive():
            if set(self.metadata.graph.own_children(parent)) != wanted:
                self.metadata.graph.put_edges({parent: sorted(wanted)})
                self._edges.append(parent)
