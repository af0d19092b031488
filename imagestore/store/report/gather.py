"""Gathering a report: everything is measured once, and nothing is changed or asked of a registry.

Matrices are made one at a time, when they are read: a store may have thousands, with hundreds of entries each.
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
    ImageNotFoundError,
    IntegrityError,
    InvalidDigestError,
    UndeletableError,
)
from imagestore.store import record_lookup
from imagestore.store.maintenance.eviction import EvictionPolicy
from imagestore.store.pull.choice import match_handlers, wanted_platforms
from imagestore.store.pull.sources import Documents
from imagestore.store.report.matrix import Matrix
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from imagestore.config import Finding, HandlerPlatform
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.select import Selection
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
class HandlerUse:
    """What one runtime handler's images take, in bytes as they travel (compressed).

    Attributes:
        handler: its name.
        images: how many it has.
        size: all that they need.
        unique_bytes: what no other handler's image needs.
    """

    handler: str
    images: int
    size: int
    unique_bytes: int

    @property
    def shared_bytes(self) -> int:
        """What other handlers' images need as well."""
        return self.size - self.unique_bytes


@dataclass(frozen=True, slots=True)
class NamedTarget:
    """An index or manifest, and the references that lead to it."""

    target: Descriptor
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreReport:
    """A store as it was at one moment.

    Attributes:
        made_at: when, in seconds since 1970.
        node: the machine's name.
        host: its platform.
        root: the store's folder.
        files: of the configuration; none for the built-in one.
        default_handler: the runtime handler that an empty name means.
        handlers: every configured runtime handler with its platform, by name.
        findings: what is wrong with the configuration, as ``config check`` has it.
        pins: the references that the configuration pins.
        usage: every image, and the disk.
        uses: what the images of each handler take; handlers that left the configuration are at the end.
        garbage: what a collection would free.
        evictions: options of ``gc`` with what they would remove.
        targets: what there is a matrix of.
        is_chosen: whether the images were named.
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
    """Measure a store.

    Args:
        store: it is only read.
        names: references or ids of the images to make matrices of; all of them by default. What they are doesn't
            change the other parts.

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
        evictions=tuple((options, store.evict(policy, dry_run=True)) for options, policy in EVICTIONS),
        targets=_targets(records),
        is_chosen=bool(names),
    )


def matrices(store: ImageStore, report: StoreReport, *, cancel: CancelToken | None = None) -> Iterator[Matrix]:
    """The matrix of each target, made from what the store has; one that can't be made says why.

    Args:
        store: the report's.
        report: says of what, and for whom.
        cancel: ends the work.

    Raises:
        OperationCancelledError: the token was cancelled.
        StoreError: the store can't be read.
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
    """What the images of each handler take.

    Args:
        images: every image of the store.
        configured: handlers to name even if they have no image, in their order.
    """
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
            raise ImageNotFoundError(f"image {name!r} is not in the store", hint=record_lookup.missing_hint(name))
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
        # A report is asked for when something is wrong: the other images are shown all the same.
        failure = str(error)
    return Matrix(named.names, named.target, selections, failure)
