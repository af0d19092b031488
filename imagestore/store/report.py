"""A report of a whole store: handlers, images, matrices, use of the disk, and what could be freed.

Everything is measured once; nothing is changed, and no registry is asked. Matrices (which manifest each handler gets,
and why) are made one at a time, when they are read: a store may have thousands, with hundreds of entries.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import imagestore.config as configuration
from imagestore.errors import (
    ContentNotFoundError,
    DocumentError,
    IntegrityError,
    InvalidDigestError,
    UndeletableError,
)
from imagestore.store import record_lookup
from imagestore.store.maintenance.eviction import EvictionPolicy
from imagestore.store.pull.choice import match_handlers, wanted_platforms
from imagestore.store.pull.sources import Documents
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from imagestore.config import Finding, HandlerPlatform
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.select import Selection, Verdict
    from imagestore.platforms import Platform
    from imagestore.store.garbage import GarbageReport
    from imagestore.store.image_store import ImageStore
    from imagestore.store.maintenance.eviction import EvictionReport
    from imagestore.store.maintenance.usage import ImageUsage, StoreUsage

#: Entries of all matrices together, when no image is named.
MOST_ENTRIES: Final = 100_000
LEFT_OUT: Final = "left out, since there is so much: name this image to see its matrix"
#: What is shown of eviction: the options of ``gc`` that would do it, and the rules. The watermarks are those that a
#: kubelet has by default (imageGCHighThresholdPercent, imageGCLowThresholdPercent).
EVICTIONS: Final = (
    ("--high 85 --low 80", EvictionPolicy(high_percent=85, low_percent=80)),
    ("--unused-for 30d", EvictionPolicy(unused_seconds=30 * 86400)),
    ("--unused-for 7d", EvictionPolicy(unused_seconds=7 * 86400)),
    ("--keep-last 1", EvictionPolicy(keep_last=1)),
    ("--keep-last 0", EvictionPolicy(keep_last=0)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of an index.

    Attributes:
        position: one number for each level of indexes; empty for a single manifest.
        descriptor: the entry.
        platform: the entry's, or its config's if a handler's search read that; None if neither is known.
        verdicts: one for each handler of the matrix; None for a handler whose search didn't open that nested index.
    """

    position: tuple[int, ...]
    descriptor: Descriptor
    platform: Platform | None
    verdicts: tuple[Verdict | None, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """What every handler gets from one target, and why.

    Attributes:
        names: the references that lead to it.
        target: the index or manifest; None if its digest isn't known.
        selections: what each handler gets, by its name.
        failure: why there are no selections; else empty.
    """

    names: tuple[str, ...]
    target: Descriptor | None
    selections: Mapping[str, Selection] = field(hash=False)
    failure: str = ""

    @property
    def handlers(self) -> tuple[str, ...]:
        """The runtime handlers, in the order of the verdicts of each row."""
        return tuple(self.selections)

    @property
    def rows(self) -> tuple[Row, ...]:
        """One for each entry that any handler has a verdict on, in index order."""
        columns = [{each.position: each for each in found.verdicts} for found in self.selections.values()]
        rows = []
        for position in sorted({position for column in columns for position in column}):
            verdicts = tuple(column.get(position) for column in columns)
            # One handler's search may have read a config that another's didn't need.
            known = max((each for each in verdicts if each is not None), key=lambda each: each.platform is not None)
            rows.append(Row(position, known.descriptor, known.platform, verdicts))
        return tuple(rows)


@dataclass(frozen=True, slots=True)
class HandlerUse:
    """How many images a runtime handler has, and their compressed bytes; ``unique_bytes`` are no other handler's."""

    handler: str
    images: int
    size: int
    unique_bytes: int

    @property
    def shared_bytes(self) -> int:
        """The part that other handlers' images need too."""
        return self.size - self.unique_bytes


@dataclass(frozen=True, slots=True)
class NamedTarget:
    """An index or manifest, and the references that lead to it."""

    target: Descriptor
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreReport:
    """A store at one moment.

    Attributes:
        made_at: in seconds since 1970.
        node: the machine's name.
        host: its platform.
        root: the store's folder, or its address.
        files: of the configuration.
        default_handler: the runtime handler that an empty name means.
        handlers: every configured runtime handler with its platform.
        findings: what ``config check`` reports.
        pins: the references that the configuration pins.
        usage: every image, and the disk.
        uses: by handler; those that left the configuration are at the end.
        garbage: what a collection would free.
        evictions: options of ``gc`` with what they would remove; without watermarks where no space is counted.
        targets: the indexes and manifests to make matrices of.
        is_chosen: whether the caller named the images.
    """

    made_at: float
    node: str
    host: Platform
    root: str
    files: tuple[str, ...]
    default_handler: str
    handlers: Mapping[str, HandlerPlatform] = field(hash=False)
    findings: tuple[Finding, ...]
    pins: frozenset[str]
    usage: StoreUsage
    uses: tuple[HandlerUse, ...]
    garbage: GarbageReport
    evictions: tuple[tuple[str, EvictionReport], ...]
    targets: tuple[NamedTarget, ...]
    is_chosen: bool


def gather(store: ImageStore, *, names: Sequence[str] = ()) -> StoreReport:
    """Measure a store, which is only read.

    ``names`` are references or ids of the images to make matrices of, by default all; the other parts don't depend on
    them.

    Raises:
        ImageNotFoundError: one of the names isn't there.
        InvalidInputError: the beginning of an id fits several images.
        InvalidPlatformError: the host is Windows with a version that can't be read.
        StoreError: the store can't be read.
    """
    records = _named(store, names) if names else [image.record for image in store.list()]
    checked = configuration.check_config(store.config)
    usage = store.usage()
    return StoreReport(
        made_at=time.time(),
        node=socket.gethostname(),
        host=store.host,
        root=store.name,
        files=tuple(store.config.files),
        default_handler=store.config.default_handler,
        handlers=wanted_platforms(store.config, None, host=store.host),
        findings=checked.findings,
        pins=record_lookup.pinned_by(store.config),
        usage=usage,
        uses=handler_uses(usage.images, store.config.handlers),
        garbage=_garbage(store),
        evictions=tuple(
            (options, store.evict(policy, dry_run=True))
            for options, policy in EVICTIONS
            if usage.disk.total_bytes or policy.high_percent is None
        ),
        targets=_targets(records),
        is_chosen=bool(names),
    )


def matrices(store: ImageStore, report: StoreReport, *, cancel: CancelToken | None = None) -> Iterator[Matrix]:
    """The matrix of each target of a report, from what the store has; one that can't be made says why.

    Raises:
        OperationCancelledError, StoreError: the store can't be read.
    """
    token, entries = cancel or CancelToken(), 0
    for each in report.targets:
        if entries > MOST_ENTRIES and not report.is_chosen:
            yield Matrix(each.names, each.target, {}, LEFT_OUT)
            continue
        matrix = _matrix(store, each, report.handlers, token)
        entries += max((len(found.verdicts) for found in matrix.selections.values()), default=0)
        yield matrix


def handler_uses(images: Iterable[ImageUsage], configured: Iterable[str]) -> tuple[HandlerUse, ...]:
    """How much the images of each handler take; configured handlers come first, also those without an image."""
    blobs: dict[str, dict[Digest, int]] = {name: {} for name in configured}
    counts = dict.fromkeys(blobs, 0)
    for image in images:
        handler = image.record.handler
        blobs.setdefault(handler, {}).update(image.blobs)
        counts[handler] = counts.get(handler, 0) + 1
    owners: dict[Digest, int] = {}
    for digest in (digest for own in blobs.values() for digest in own):
        owners[digest] = owners.get(digest, 0) + 1
    return tuple(
        HandlerUse(
            name,
            counts[name],
            sum(own.values()),
            sum(size for digest, size in own.items() if owners[digest] == 1),
        )
        for name, own in blobs.items()
    )


def _named(store: ImageStore, names: Iterable[str]) -> list[ImageRecord]:
    records = []
    for name in names:
        found = [image.record for image in store.list(name=name)]
        if not found:
            raise record_lookup.not_found(name)
        records += found
    return records


def _targets(records: Iterable[ImageRecord]) -> tuple[NamedTarget, ...]:
    """Each target once, in the order of their first references."""
    targets: dict[Digest, Descriptor] = {}
    names: dict[Digest, dict[str, None]] = {}
    for record in records:
        targets.setdefault(record.target.digest, record.target)
        names.setdefault(record.target.digest, {})[record.reference] = None
    return tuple(NamedTarget(target, tuple(names[digest])) for digest, target in targets.items())


def _garbage(store: ImageStore) -> GarbageReport:
    try:
        return store.collect_garbage(dry_run=True)
    except UndeletableError as error:  # its report names what can't be deleted
        return cast("GarbageReport", error.report)


def _matrix(
    store: ImageStore, named: NamedTarget, handlers: Mapping[str, HandlerPlatform], cancel: CancelToken
) -> Matrix:
    selections: Mapping[str, Selection] = {}
    failure = ""
    try:
        selections = match_handlers(named.target, Documents(store.content, None, None, cancel), handlers)
    except (ContentNotFoundError, DocumentError, IntegrityError, InvalidDigestError) as error:
        # A damaged image must not hide the others.
        failure = str(error)
    return Matrix(named.names, named.target, selections, failure)
