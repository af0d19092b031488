"""Checking: hash every blob again, and compare every edge and every record with what the content says.

It only reads. Other processes go on: what was removed or collected since it was listed is no fault.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import imagestore.platforms as platforms
from imagestore.errors import (
    ContentNotFoundError,
    ContentUnreadableError,
    DocumentError,
    IntegrityError,
    InvalidPlatformError,
    StoreCorruptError,
)
from imagestore.oci.decode import MAX_DOCUMENT_BYTES, limit_of
from imagestore.oci.image_config import config_of
from imagestore.store.maintenance.hashing import Hashing
from imagestore.store.maintenance.why import held_documents

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Self

    from imagestore.content.api import ContentStore
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.manifest import Manifest
    from imagestore.platforms import Platform
    from imagestore.store.maintenance.hashing import CheckOptions
    from imagestore.util.cancel import CancelToken


class FaultKind(enum.Enum):
    """What is wrong. The first three are repaired by fetching, edges by reading the manifest.

    An unreadable blob may be whole: another try may read it.
    """

    BLOB_DAMAGED = "blob damaged"
    BLOB_MISSING = "blob missing"
    BLOB_UNREADABLE = "blob unreadable"
    EDGE_WRONG = "edges wrong"
    RECORD_WRONG = "record wrong"
    DATABASE_DAMAGED = "database damaged"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of ``subject``: a digest, or a record as ``reference (handler)``.

    ``detail`` has what was expected and found; ``digest`` is the blob, or the parent of wrong edges.
    """

    kind: FaultKind
    subject: str
    detail: str
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Faults (of blobs, then of records), and how many blobs and records were checked.

    ``blobs`` counts also those before an interruption, ``bytes_hashed`` only this run.
    """

    faults: tuple[Fault, ...]
    blobs: int
    bytes_hashed: int
    records: int

    @classmethod
    def of_damaged(cls, digests: Collection[Digest]) -> Self:
        """The report of somebody who found these blobs damaged, for a repair of them alone."""
        return cls(tuple(_damage(digest) for digest in sorted(digests)), len(digests), 0, 0)

    @property
    def damaged(self) -> frozenset[Digest]:
        """Blobs with other bytes than their digest says."""
        return self._blobs(FaultKind.BLOB_DAMAGED)

    @property
    def unreadable(self) -> frozenset[Digest]:
        """Blobs that the disk couldn't read."""
        return self._blobs(FaultKind.BLOB_UNREADABLE)

    def _blobs(self, kind: FaultKind) -> frozenset[Digest]:
        return frozenset(fault.digest for fault in self.faults if fault.kind is kind and fault.digest is not None)


def check(metadata: MetadataStore, content: ContentStore, *, options: CheckOptions, cancel: CancelToken) -> CheckReport:
    """Check everything; with a state file a cancelled check can be resumed.

    Raises:
        StoreError: the store can't be read.
        OperationCancelledError: cancelled.
    """
    faults = [Fault(FaultKind.DATABASE_DAMAGED, "records", line) for line in metadata.damage()]
    hashing = Hashing(content, options, cancel)
    hashing.run()
    faults += [_damage(digest) for digest in sorted(hashing.damaged)]
    faults += [_unreadable(digest, reason) for digest, reason in sorted(hashing.unreadable.items())]
    try:
        records = metadata.images.find()
    except StoreCorruptError as error:
        # Report what was found so far: it took long.
        records = []
        if all(fault.kind is not FaultKind.DATABASE_DAMAGED for fault in faults):
            faults.append(_corrupt(error))
    seen = {fault.digest for fault in faults}
    for record in records:
        cancel.check()
        try:
            found = record_faults(metadata, content, record)
        except StoreCorruptError as error:
            found = [_corrupt(error)]
        for fault in found:
            # Several records may share a missing blob; one fault of the database is enough to rebuild it.
            is_known = any(each.kind is fault.kind for each in faults) if fault.digest is None else fault.digest in seen
            if fault.kind is FaultKind.RECORD_WRONG or not is_known:
                faults.append(fault)
                seen.add(fault.digest)
    return CheckReport(tuple(faults), hashing.blobs_done, hashing.bytes_hashed, len(records))


def record_faults(metadata: MetadataStore, content: ContentStore, record: ImageRecord) -> list[Fault]:
    """What is wrong with one record; nothing if it was changed or removed since it was read.

    Documents are hashed, of layers only the size is compared.
    """
    faults = list(_record_faults(metadata, content, record))
    if not faults:
        return []
    current = metadata.images.get(record.reference, record.handler)
    # A new time of use or a pin is no repair.
    is_same = current is not None and record == replace(current, used_at=record.used_at, is_pinned=record.is_pinned)
    return faults if is_same else []


def _record_faults(metadata: MetadataStore, content: ContentStore, record: ImageRecord) -> Iterator[Fault]:
    subject = f"{record.reference} ({record.handler})"
    unread: list[Fault] = []

    def _read(descriptor: Descriptor) -> bytes | None:
        try:
            return content.read(descriptor.digest, limit_bytes=limit_of(descriptor.kind))
        except ContentNotFoundError:
            unread.append(_missing(descriptor.digest, subject))
        except IntegrityError as error:
            unread.append(_unfit(descriptor.digest, error))
        return None

    for digest in (record.target.digest, record.manifest.digest):
        if digest not in record.roots:
            yield Fault(FaultKind.RECORD_WRONG, subject, f"does not hold {digest}, which it points at")
    for held in held_documents(record, _read):
        if held.error is not None:
            yield Fault(FaultKind.RECORD_WRONG, subject, str(held.error))
        elif held.manifest is not None:
            yield from _manifest_faults(metadata, content, (held.digest, held.manifest), subject)
            if held.digest == record.manifest.digest:
                yield from _config_faults(content, record, held.manifest, subject)
    yield from unread


def _manifest_faults(
    metadata: MetadataStore, content: ContentStore, parent: tuple[Digest, Manifest], subject: str
) -> Iterator[Fault]:
    """What is wrong with a manifest's edges and with what they lead to."""
    digest, manifest = parent
    children = {child.digest: child for child in manifest.children}
    if set(metadata.graph.own_children(digest)) != children.keys():
        yield Fault(FaultKind.EDGE_WRONG, subject, f"differ from what manifest {digest} says", digest)
    for child in children.values():
        try:
            size = content.info(child.digest).size
        except ContentNotFoundError:
            yield _missing(child.digest, subject)
            continue
        except IntegrityError as error:
            yield _unfit(child.digest, error)
            continue
        if size != child.size:
            detail = f"expected {child.size} bytes, found {size}"
            yield Fault(FaultKind.BLOB_DAMAGED, str(child.digest), detail, child.digest)


def _config_faults(content: ContentStore, record: ImageRecord, manifest: Manifest, subject: str) -> Iterator[Fault]:
    if record.image_id != manifest.config.digest:
        detail = f"expected image id {manifest.config.digest}, found {record.image_id}"
        yield Fault(FaultKind.RECORD_WRONG, subject, detail)
    if not manifest.is_image:
        return
    what = f"image config of {subject}"
    try:
        config = config_of(manifest, content.read(manifest.config.digest, limit_bytes=MAX_DOCUMENT_BYTES), what=what)
    except ContentNotFoundError:  # reported with the manifest's faults
        return
    except IntegrityError as error:
        yield _unfit(manifest.config.digest, error)
        return
    except DocumentError as error:
        yield Fault(FaultKind.RECORD_WRONG, subject, str(error))
        return
    if config is None:
        return
    ours, theirs = platforms.normalize(record.platform), platforms.normalize(config.platform)
    # A record with a warning was accepted although index and config differ.
    is_same = (ours.os, ours.architecture) == (theirs.os, theirs.architecture)
    if not is_same and not record.warnings and not _are_wanted(record, ours, theirs):
        detail = f"expected platform {theirs.os}/{theirs.architecture}, found {ours.os}/{ours.architecture}"
        yield Fault(FaultKind.RECORD_WRONG, subject, detail)


def _are_wanted(record: ImageRecord, *found: Platform) -> bool:
    """Whether the pull had no reason to warn: an amd64 host runs 386 too, whatever index and config say."""
    try:
        wanted = platforms.default_for(platforms.parse(record.wanted))
    except InvalidPlatformError:
        return False
    return all(map(wanted.match, found))


def _corrupt(error: StoreCorruptError) -> Fault:
    return Fault(FaultKind.DATABASE_DAMAGED, "records", str(error))


def _missing(digest: Digest, subject: str) -> Fault:
    return Fault(FaultKind.BLOB_MISSING, str(digest), f"needed by {subject}", digest)


def _unfit(digest: Digest, error: IntegrityError) -> Fault:
    return _unreadable(digest, error.reason) if isinstance(error, ContentUnreadableError) else _damage(digest)


def _damage(digest: Digest) -> Fault:
    return Fault(FaultKind.BLOB_DAMAGED, str(digest), "the bytes hash to another digest", digest)


def _unreadable(digest: Digest, reason: str) -> Fault:
    return Fault(FaultKind.BLOB_UNREADABLE, str(digest), f"the disk can't read it: {reason}", digest)
