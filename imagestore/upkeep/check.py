"""Checking: every blob hashed again, every edge and every record compared with what the content says.

Only reads. Work of other processes goes on meanwhile: what was removed or collected since it was listed is no fault.
"""

from __future__ import annotations

import contextlib
import enum
import json
import logging
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore import platforms
from imagestore.content.disk import replace_text, translated
from imagestore.digest import Digest, Verifier
from imagestore.documents.decode import MAX_DOCUMENT_BYTES
from imagestore.documents.image_config import image_config
from imagestore.errors import (
    ContentNotFoundError,
    DocumentError,
    IntegrityError,
    InvalidDigestError,
    InvalidInputError,
    InvalidPlatformError,
    StoreCorruptError,
    StoreError,
)
from imagestore.failpoint import reach
from imagestore.own_files import opener
from imagestore.upkeep.held import held_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from imagestore.cancel import CancelToken
    from imagestore.content.api import ContentInfo, ContentStore
    from imagestore.descriptor import Descriptor
    from imagestore.documents.manifest import Manifest
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.platforms import Platform

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1024 * 1024
_SAVE_SECONDS: Final = 2.0
_LONGEST_STATE_BYTES: Final = 16 * 1024 * 1024


class FaultKind(enum.Enum):
    """What is wrong; the first two are mended by fetching, an edge by reading the manifest."""

    BLOB_DAMAGED = "blob damaged"
    BLOB_MISSING = "blob missing"
    EDGE_WRONG = "edges wrong"
    RECORD_WRONG = "record wrong"
    DATABASE_DAMAGED = "database damaged"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is not as it should be.

    Attributes:
        kind: what is wrong.
        subject: what with: a digest, or a record as ``reference (handler)``.
        detail: expected against found.
        digest: the blob that is concerned; for wrong edges their parent.
    """

    kind: FaultKind
    subject: str
    detail: str
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """How far hashing has come."""

    blobs_done: int
    blobs_total: int
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was checked and found.

    Attributes:
        faults: in the order of blobs, then records.
        blobs: how many were hashed, now or before the interruption that was resumed.
        bytes_hashed: in this run.
        records: how many records were compared.
    """

    faults: tuple[Fault, ...]
    blobs: int
    bytes_hashed: int
    records: int

    @property
    def damaged(self) -> frozenset[Digest]:
        """Blobs that are there with other bytes."""
        return frozenset(
            fault.digest for fault in self.faults if fault.kind is FaultKind.BLOB_DAMAGED and fault.digest is not None
        )


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How to check.

    Attributes:
        bytes_per_second: bound of reading; None: as fast as it goes.
        state: file that remembers how far hashing came; None: don't remember.
        resume: go on from the state file.
        progress: called now and then.
    """

    bytes_per_second: float | None = None
    state: Path | None = None
    resume: bool = False
    progress: Callable[[CheckProgress], None] | None = None

    def __post_init__(self) -> None:
        if self.bytes_per_second is not None and not self.bytes_per_second > 0:
            raise InvalidInputError(f"rate of hashing {self.bytes_per_second}: expected bytes per second above zero")


def check(metadata: MetadataStore, content: ContentStore, *, options: CheckOptions, cancel: CancelToken) -> CheckReport:
    """Check everything.

    Args:
        metadata: records and edges.
        content: the blobs.
        options: how.
        cancel: ends the work; with a state file it can be resumed.

    Raises:
        StoreError: the store can't be read.
        OperationCancelledError: cancelled.
    """
    faults = [Fault(FaultKind.DATABASE_DAMAGED, "records", line) for line in metadata.damage()]
    hashing = _Hashing(content, options, cancel)
    hashing.run()
    faults += [_damage(digest) for digest in sorted(hashing.damaged)]
    try:
        records = metadata.find_images()
    except StoreCorruptError as error:
        # What was found so far took long to find.
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
            # Several records may share a blob that is missing; one damage of the database is enough to rebuild it.
            is_known = any(each.kind is fault.kind for each in faults) if fault.digest is None else fault.digest in seen
            if fault.kind is FaultKind.RECORD_WRONG or not is_known:
                faults.append(fault)
                seen.add(fault.digest)
    return CheckReport(tuple(faults), hashing.blobs_done, hashing.bytes_hashed, len(records))


def record_faults(metadata: MetadataStore, content: ContentStore, record: ImageRecord) -> list[Fault]:
    """What is wrong with one record; nothing when it was changed or removed meanwhile.

    Args:
        metadata: where its edges are.
        content: where its blobs are; documents are hashed, layers only looked at.
        record: the record.
    """
    faults = list(_record_faults(metadata, content, record))
    if not faults:
        return []
    current = metadata.get_image(record.reference, record.handler)
    # To be used or pinned mends nothing.
    is_same = current is not None and record == replace(current, used_at=record.used_at, is_pinned=record.is_pinned)
    return faults if is_same else []


def is_whole(content: ContentStore, digest: Digest) -> bool:
    """Whether a blob is here and hashes to its digest."""
    try:
        _hash(content, digest, lambda _: None)
    except (ContentNotFoundError, IntegrityError):
        return False
    return True


def _record_faults(metadata: MetadataStore, content: ContentStore, record: ImageRecord) -> Iterator[Fault]:
    subject = f"{record.reference} ({record.handler})"
    unread: list[Fault] = []

    def read(descriptor: Descriptor) -> bytes | None:
        try:
            return content.read(descriptor.digest, limit_bytes=MAX_DOCUMENT_BYTES)
        except ContentNotFoundError:
            unread.append(_missing(descriptor.digest, subject))
        except IntegrityError:
            unread.append(_damage(descriptor.digest))
        return None

    for digest in (record.target.digest, record.manifest.digest):
        if digest not in record.roots:
            yield Fault(FaultKind.RECORD_WRONG, subject, f"does not hold {digest}, which it points at")
    for held in held_documents(record, read):
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
    if set(metadata.own_children(digest)) != children.keys():
        yield Fault(FaultKind.EDGE_WRONG, subject, f"differ from what manifest {digest} says", digest)
    for child in children.values():
        try:
            size = content.info(child.digest).size
        except ContentNotFoundError:
            yield _missing(child.digest, subject)
            continue
        except IntegrityError:
            yield _damage(child.digest)
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
        config = image_config(manifest, content.read(manifest.config.digest, limit_bytes=MAX_DOCUMENT_BYTES), what=what)
    except ContentNotFoundError:  # which the manifest's faults say
        return
    except IntegrityError:
        yield _damage(manifest.config.digest)
        return
    except DocumentError as error:
        yield Fault(FaultKind.RECORD_WRONG, subject, str(error))
        return
    if config is None:
        return
    ours, theirs = platforms.normalize(record.platform), platforms.normalize(config.platform)
    # A record with a warning was accepted although index and config disagree.
    is_same = (ours.os, ours.architecture) == (theirs.os, theirs.architecture)
    if not is_same and not record.warnings and not _are_wanted(record, ours, theirs):
        detail = f"expected platform {theirs.os}/{theirs.architecture}, found {ours.os}/{ours.architecture}"
        yield Fault(FaultKind.RECORD_WRONG, subject, detail)


def _are_wanted(record: ImageRecord, *found: Platform) -> bool:
    """Whether the pull had no reason to warn: who runs amd64 runs 386 too, whatever index and config say of it."""
    try:
        wanted = platforms.default_for(platforms.parse(record.wanted))
    except InvalidPlatformError:
        return False
    return all(map(wanted.match, found))


class _Hashing:
    """Reads every blob in the order of digests, so that a place in that order says how far it came."""

    def __init__(self, content: ContentStore, options: CheckOptions, cancel: CancelToken) -> None:
        self.damaged: set[Digest] = set()
        self.blobs_done = 0
        self.bytes_hashed = 0
        self._content = content
        self._options = options
        self._cancel = cancel
        self._after: Digest | None = None
        self._saved_at = time.monotonic()
        self._started_at = time.monotonic()

    def run(self) -> None:
        if self._options.resume:
            self._load()
        infos = sorted(self._content.walk(), key=lambda info: info.digest)
        total = sum(info.size for info in infos)
        skipped = 0
        try:
            for info in infos:
                if self._after is not None and info.digest <= self._after and info.digest not in self.damaged:
                    skipped += info.size
                else:
                    self._one(info)
                self.blobs_done += 1
                self._tell(len(infos), skipped + self.bytes_hashed, total)
        except BaseException:
            self._save()
            raise
        self._forget()

    def _one(self, info: ContentInfo) -> None:
        self.damaged.discard(info.digest)
        try:
            _hash(self._content, info.digest, self._read)
        except ContentNotFoundError:  # collected since it was listed
            return
        except IntegrityError:
            self.damaged.add(info.digest)
        if self._after is None or self._after < info.digest:
            self._after = info.digest

    def _read(self, count: int) -> None:
        """Count bytes, and wait where they come faster than allowed."""
        self.bytes_hashed += count
        self._cancel.check()
        if self._options.bytes_per_second:
            ahead = self.bytes_hashed / self._options.bytes_per_second - (time.monotonic() - self._started_at)
            if ahead > 0:
                self._cancel.wait(ahead)

    def _tell(self, blobs: int, done: int, total: int) -> None:
        if time.monotonic() - self._saved_at >= _SAVE_SECONDS:
            self._saved_at = time.monotonic()
            self._save()
        if self._options.progress is not None:
            self._options.progress(CheckProgress(self.blobs_done, blobs, done, total))

    def _save(self) -> None:
        if self._options.state is not None and self._after is not None:
            state = {"after": str(self._after), "damaged": [str(digest) for digest in sorted(self.damaged)]}
            try:
                with translated("write", self._options.state):
                    replace_text(self._options.state, json.dumps(state))
            except StoreError as error:
                # A check only reads: a full or read-only disk must not end it. It can't be resumed then.
                log.warning("%s", error)

    def _forget(self) -> None:
        """Remove the state of a check that is done; where it can't be, the report counts more."""
        state = self._options.state
        if state is None:
            return
        try:
            with translated("remove", state), contextlib.suppress(FileNotFoundError):
                reach("check-state-unlink")
                os.unlink(state)
        except StoreError as error:
            # A read-only disk refuses also what isn't there.
            if os.path.lexists(state):
                log.warning("%s", error)

    def _load(self) -> None:
        """Where the last run stopped; a state that can't be read means from the start."""
        if self._options.state is None:
            return
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError, InvalidDigestError):
            with open(self._options.state, encoding="ascii", opener=opener) as file:
                state = json.loads(file.read(_LONGEST_STATE_BYTES))
            damaged = {Digest.parse(text) for text in state["damaged"]}
            self._after, self.damaged = Digest.parse(state["after"]), damaged


def _hash(content: ContentStore, digest: Digest, read: Callable[[int], None]) -> None:
    verifier = Verifier(digest)
    with content.open(digest) as blob, translated("read", f"content {digest}"):
        while chunk := blob.read(_CHUNK_BYTES):
            verifier.update(chunk)
            read(len(chunk))
    verifier.finish()


def _corrupt(error: StoreCorruptError) -> Fault:
    return Fault(FaultKind.DATABASE_DAMAGED, "records", str(error))


def _missing(digest: Digest, subject: str) -> Fault:
    return Fault(FaultKind.BLOB_MISSING, str(digest), f"needed by {subject}", digest)


def _damage(digest: Digest) -> Fault:
    return Fault(FaultKind.BLOB_DAMAGED, str(digest), "the bytes hash to another digest, or can't be read", digest)
