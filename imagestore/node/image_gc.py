"""One node's image collector: rounds by age and by space, removal of all that is unused, plans, statistics.

Rule: the kubelet's image GC manager, with its texts. Under the gate RuntimeClassInImageCriApi removal names the runtime
handler (upstream's adapter loses it); without the gate it never does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from imagestore.cri.model import ImageSpec
from imagestore.errors import ImageCollectionError, ImageStoreError, OperationCancelledError
from imagestore.node import kubelet_messages
from imagestore.node.eviction import Spared, candidates, disk_of_images, free_space, remove_old, size_text, sort_key
from imagestore.node.image_uses import Detector
from imagestore.node.kubelet_messages import (
    IMAGE_GC_FAILED,
    NodeEvent,
    ObjectReference,
    aggregate,
    log_event,
    runtime_text,
)
from imagestore.util.durations import NANOSECONDS, Duration

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from imagestore.node.eviction import CollectionPolicy, DiskUsage, Removal
    from imagestore.node.feature_gates import FeatureGates
    from imagestore.node.image_service import ImageService
    from imagestore.node.image_uses import CollectorState, ImageKey, ImageUse
    from imagestore.node.kubelet_messages import EventRecorder
    from imagestore.node.metrics import NodeMetrics
    from imagestore.node.pull_record_manager import PullManager
    from imagestore.util.cancel import CancelToken


#: Stands for "all" in the text of a failed removal of everything, as upstream prints it.
_ALL_BYTES: Final = 2**63 - 1


@dataclass(slots=True)
class CollectionReport:
    """What a round did, or what a dry run would do.

    Attributes:
        is_dry_run: nothing was removed.
        disk: at the time, in a dry run without what would have gone by age; None where the round didn't come to it.
        target_bytes: how much was to be freed; None when the disk was below the high threshold, or no limit was set.
        removed: images that went, in order.
        failed: removals that failed.
        spared: images that stayed, and why.
        freed_bytes: by listed sizes, for space; what went by age is not in it.
    """

    is_dry_run: bool
    disk: DiskUsage | None = None
    target_bytes: int | None = None
    removed: list[Removal] = field(default_factory=list)
    failed: list[Removal] = field(default_factory=list)
    spared: list[tuple[ImageUse, Spared]] = field(default_factory=list)
    freed_bytes: int = 0

    @property
    def missing_bytes(self) -> int:
        """How much less was freed than was to be."""
        return max(0, (self.target_bytes or 0) - self.freed_bytes)

    def note(self, removals: Iterable[Removal]) -> None:
        """Sort removals into those that went and those that failed."""
        for each in removals:
            (self.failed if each.error else self.removed).append(each)


@dataclass(frozen=True, slots=True)
class CollectorStats:
    """What the collector knows after its last look.

    Attributes:
        images: records, one for each key.
        in_use, pinned: how many of them.
        bytes: listed sizes, added up; shared layers count for each image.
        by_handler: number of records by runtime handler; empty is the default handler.
        removed_images, freed_bytes: since the process began.
    """

    images: int
    in_use: int
    pinned: int
    bytes: int
    by_handler: dict[str, int]
    removed_images: int
    freed_bytes: int


class ImageCollector:
    """Collects images of one image service; safe from any thread.

    Attributes:
        policy: thresholds and ages.
        began: when the collector was made, by its clock; or what its state says.
        last_report: of the last round, also of one that ended in an error; None before the first.

    Args:
        service: where images and containers are.
        policy: thresholds and ages.
        gates: feature gates.
        disk: numbers of the image file system; by default those below the service's first one.
        sandbox_image: spared even where the service doesn't pin it; empty leaves it to the service.
        recorder: hears of events.
        node: what they are attached to.
        metrics: counts.
        default_handler: how the service calls the default runtime handler, where it lists it by name.
        records: pull records that are pruned after each round.
        state: what earlier processes saw; then the clock has to be that of the calendar.
        clock: nanoseconds that only go forwards.
    """

    def __init__(
        self,
        service: ImageService,
        policy: CollectionPolicy,
        *,
        gates: FeatureGates,
        disk: Callable[[], DiskUsage] | None = None,
        sandbox_image: str = "",
        recorder: EventRecorder = log_event,
        node: ObjectReference | None = None,
        metrics: NodeMetrics | None = None,
        default_handler: str = "",
        records: PullManager | None = None,
        state: CollectorState | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.policy = policy
        self.last_report: CollectionReport | None = None
        self._service = service
        self._gates = gates
        self._disk = disk or (lambda: disk_of_images(service))
        self._recorder = recorder
        self._node = node
        self._metrics = metrics
        self._default_handler = default_handler
        self._pull_records = records
        self._clock = clock
        self._detector = Detector(with_handlers=gates.runtime_class_in_image_cri, sandbox_image=sandbox_image)
        self._in_use: frozenset[ImageKey] = frozenset()
        self._removed_images = self._freed_bytes = 0
        self._lock = threading.RLock()
        self.began = state.began if state is not None else clock()
        if state is not None:
            self._detector.records = {use.key: use for use in state.uses}

    def detect(self, detected_at: int | None = None) -> frozenset[ImageKey]:
        """Look at what is there and what is in use; every five minutes, and before each round.

        Args:
            detected_at: when new images count as first detected; now by default.

        Returns:
            The keys in use.

        Raises:
            ImageStoreError: the service can't tell.
        """
        moment = self._clock() if detected_at is None else detected_at
        images = self._service.list()
        containers = self._service.containers()
        with self._lock:
            self._in_use = self._detector.update(images, containers, detected_at=moment, now=self._clock())
            self._show_handlers()
            return self._in_use

    def collect(self, *, dry_run: bool = False, began: int | None = None) -> CollectionReport:
        """One round: by age, then by space.

        Args:
            dry_run: only say what would go; nothing is removed, no event is sent, too little space is no error.
            began: when the process came up, by the collector's clock; by default when the collector was made.

        Raises:
            ImageCollectionError: removals failed, or too little could be freed.
            ImageStoreError: the service or the disk can't be read.
        """
        now, started_at = self._clock(), time.time()
        with self._lock:
            report = self.last_report = CollectionReport(dry_run)
            images = self._eviction_order(now, report)
            try:
                self._round(images, report, now, self.began if began is None else began)
            finally:
                self._prune(report, started_at)
        return report

    def delete_unused(self, *, dry_run: bool = False, minimum_age: Duration | None = None) -> CollectionReport:
        """Remove all that may go, as under disk pressure.

        Args:
            dry_run: only say what would go.
            minimum_age: instead of the policy's.

        Raises:
            ImageCollectionError: removals failed.
            ImageStoreError: the service can't tell.
        """
        now, started_at = self._clock(), time.time()
        with self._lock:
            report = self.last_report = CollectionReport(dry_run)
            images = self._eviction_order(now, report)
            try:
                self._free(images, None, report, now, minimum_age)
            finally:
                self._prune(report, started_at)
        return report

    def stats(self, without: Container[ImageKey] = ()) -> CollectorStats:
        """Numbers of the last look.

        Args:
            without: images that don't count, such as those that a plan would remove.
        """
        with self._lock:
            records = [record for record in self._detector.records.values() if record.key not in without]
            return CollectorStats(
                images=len(records),
                in_use=sum(record.key in self._in_use for record in records),
                pinned=sum(record.is_pinned for record in records),
                bytes=sum(record.size_bytes for record in records),
                by_handler=_by_handler(records),
                removed_images=self._removed_images,
                freed_bytes=self._freed_bytes,
            )

    def images(self) -> tuple[ImageUse, ...]:
        """The records of the last look, in eviction order."""
        with self._lock:
            return tuple(sorted(self._detector.records.values(), key=sort_key))

    def _show_handlers(self) -> None:
        """Count the images of other handlers than the default one."""
        if self._metrics is not None:
            counts = _by_handler(self._detector.records.values())
            others = {name: count for name, count in counts.items() if name not in ("", self._default_handler)}
            self._metrics.count_handlers(others)

    def _eviction_order(self, now: int, report: CollectionReport) -> list[ImageUse]:
        in_use = self.detect(now)
        images, spared = candidates(self._detector.records.values(), in_use)
        report.spared += spared
        for _image in (image for image, why in spared if why is Spared.NO_ID):
            self._warn(kubelet_messages.INVALID_IMAGE_ID, "ImageID is not valid, skipping, ImageID: ", report)
        return images

    def _round(self, images: list[ImageUse], report: CollectionReport, now: int, began: int) -> None:
        policy, remove = self.policy, self._remover(report)
        tried, images = remove_old(images, policy, now=now, began=began, remove=remove)
        report.note(tried)
        if report.failed:
            listed = aggregate(each.error for each in report.failed)
            message = f"wanted to free images older than {policy.maximum_age}, encountered errors in image deletion: "
            raise ImageCollectionError(message + listed)
        disk = self._disk()
        if report.is_dry_run:
            # As it would be by then, by listed sizes.
            freed = sum(each.image.size_bytes for each in report.removed)
            disk = replace(disk, available_bytes=disk.available_bytes + freed)
        report.disk = disk
        if disk.capacity_bytes == 0:
            message = "invalid capacity 0 on image filesystem"
            self._warn(kubelet_messages.INVALID_DISK_CAPACITY, message, report)
            raise ImageCollectionError(message)
        report.target_bytes = policy.bytes_to_free(disk)
        if report.target_bytes is None:
            report.spared += [(image, Spared.UNTOUCHED) for image in images]
            return
        self._free(images, report.target_bytes, report, now, None)
        if report.freed_bytes < report.target_bytes and not report.is_dry_run:
            message = (
                f"Insufficient free disk space on the node's image filesystem"
                f" ({disk.usage_percent}% of {size_text(disk.capacity_bytes)} used)."
                f" Failed to free sufficient space by deleting unused images (freed {report.freed_bytes} bytes)."
                " Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
            )
            self._warn(kubelet_messages.FREE_DISK_SPACE_FAILED, message, report)
            raise ImageCollectionError(message, freed_bytes=report.freed_bytes)

    def _free(
        self,
        images: list[ImageUse],
        target_bytes: int | None,
        report: CollectionReport,
        now: int,
        minimum_age: Duration | None,
    ) -> None:
        age = self.policy.minimum_age if minimum_age is None else minimum_age
        walk = free_space(images, target_bytes, minimum_age=age, now=now, remove=self._remover(report))
        report.note(walk.tried)
        report.spared += walk.spared
        report.freed_bytes = walk.freed_bytes
        failures = [each.error for each in walk.tried if each.error]
        if failures:
            wanted = _ALL_BYTES if target_bytes is None else target_bytes
            message = (
                f"wanted to free {wanted} bytes, but freed {walk.freed_bytes} bytes space"
                f" with errors in image deletion: {aggregate(failures)}"
            )
            raise ImageCollectionError(message, freed_bytes=walk.freed_bytes)

    def _remover(self, report: CollectionReport) -> Callable[[ImageUse], str]:
        return (lambda _image: "") if report.is_dry_run else self._remove

    def _remove(self, image: ImageUse) -> str:
        handler = image.key.runtime_handler if self._gates.runtime_class_in_image_cri else ""
        try:
            self._service.remove(ImageSpec(image.key.image_id, handler))
        except ImageStoreError as error:
            return runtime_text(error)
        self._detector.records.pop(image.key, None)
        self._removed_images += 1
        self._freed_bytes += image.size_bytes
        return ""

    def _prune(self, report: CollectionReport, started_at: float) -> None:
        if report.is_dry_run:
            return
        if self._metrics is not None:
            for each in report.removed:
                self._metrics.collected.labels(each.reason).inc()
            self._show_handlers()
        if self._pull_records is not None:
            self._pull_records.prune({key.image_id for key in self._detector.records}, before=started_at)

    def _warn(self, reason: str, message: str, report: CollectionReport) -> None:
        if not report.is_dry_run:
            self._recorder(NodeEvent("Warning", reason, message, self._node))


def _by_handler(records: Iterable[ImageUse]) -> dict[str, int]:
    return dict(sorted(Counter(record.key.runtime_handler for record in records).items()))


_LOGGER: Final = logging.getLogger(__name__)
PERIOD: Final = Duration(300 * NANOSECONDS)


class CollectionLoop:
    """Rounds in regular distance.

    Args:
        collector: whose rounds.
        recorder: hears of ImageGCFailed.
        node: what events are attached to.
        period: between the end of a round and the next.
    """

    def __init__(
        self,
        collector: ImageCollector,
        *,
        recorder: EventRecorder = log_event,
        node: ObjectReference | None = None,
        period: Duration = PERIOD,
    ) -> None:
        self._collector = collector
        self._recorder = recorder
        self._node = node
        self._period = period
        self._has_failed = False

    def round(self) -> bool:
        """One round; failures are logged and, when repeated, told as an event. Returns whether it went well."""
        try:
            self._collector.collect()
        except ImageStoreError as error:
            if self._has_failed:
                _LOGGER.error("image garbage collection failed multiple times in a row: %s", error)
                self._recorder(NodeEvent("Warning", IMAGE_GC_FAILED, str(error), self._node))
            else:
                _LOGGER.error("image garbage collection failed once: %s", error)
            self._has_failed = True
            return False
        self._has_failed = False
        return True

    def run(self, cancel: CancelToken) -> None:
        """Look, and collect if the policy ever can, until the token ends it."""
        try:
            while True:
                if self._collector.policy.is_loop_needed:
                    self.round()
                else:
                    self._look()
                cancel.wait(self._period.seconds)
        except OperationCancelledError:
            return

    def _look(self) -> None:
        try:
            self._collector.detect()
        except ImageStoreError as error:
            _LOGGER.warning("images can't be looked at: %s", error)
