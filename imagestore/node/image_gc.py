"""Image garbage collection of a node: rounds by age and by disk usage, removal of all unused images, plans, statistics.

Rules: the kubelet's image GC manager, with its texts. A round runs every five minutes; the first failed round is only
logged, from the second in a row each sends ImageGCFailed. No round runs if the high threshold is 100 and there is no
maximum age.
If the gate RuntimeClassInImageCriApi is on, a removal names the runtime handler (upstream's adapter drops it).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import imagestore.node.kubelet_messages as kubelet_messages
from imagestore.cri import ImageSpec
from imagestore.errors import ImageCollectionError, ImageStoreError, OperationCancelledError
from imagestore.node.eviction import (
    CollectionReport,
    Spared,
    candidates,
    disk_of_images,
    free_space,
    remove_old,
    size_text,
    sort_key,
)
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

    from imagestore.node.eviction import CollectionPolicy, DiskUsage
    from imagestore.node.feature_gates import FeatureGates
    from imagestore.node.image_service import ImageService
    from imagestore.node.image_uses import CollectorState, ImageKey, ImageUse
    from imagestore.node.kubelet_messages import EventRecorder
    from imagestore.node.metrics import NodeMetrics
    from imagestore.node.pull_record_manager import PullManager
    from imagestore.util.cancel import CancelToken

_LOGGER: Final = logging.getLogger(__name__)
PERIOD: Final = Duration(300 * NANOSECONDS)
#: "All bytes" in the error text of a failed removal of everything, as upstream prints it.
_ALL_BYTES: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class CollectorStats:
    """Numbers of the last detection.

    Attributes:
        images: image records, one for each key.
        in_use, pinned: how many of them.
        by_handler: how many by runtime handler; the empty name is the default handler.
    """

    images: int
    in_use: int
    pinned: int
    by_handler: dict[str, int]


class ImageCollector:
    """Collects images of one image service; safe from any thread.

    Attributes:
        last_report: of the last round, also if it failed; None before the first.

    Args:
        service: the image service.
        policy: thresholds and ages.
        gates: feature gates.
        disk: reads the usage of the image file system; by default of the first one that the service names.
        sandbox_image: spared even if the service doesn't pin it.
        recorder: receives events.
        node: the object of the events.
        metrics: counters; None counts nothing.
        default_handler: name under which the service lists the default runtime handler; empty if it has none.
        records: pull records to prune after each round.
        state: of earlier processes; the clock must then count from 1970.
        clock: monotonic nanoseconds.
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
        self._has_handlers = gates.runtime_class_in_image_cri
        self._disk = disk or (lambda: disk_of_images(service))
        self._recorder = recorder
        self._node = node
        self._metrics = metrics
        self._default_handler = default_handler
        self._pull_records = records
        self._clock = clock
        self._detector = Detector(with_handlers=self._has_handlers, sandbox_image=sandbox_image)
        self._in_use: frozenset[ImageKey] = frozenset()
        self._lock = threading.RLock()
        self._began = state.began if state is not None else clock()
        if state is not None:
            self._detector.records = {use.key: use for use in state.uses}

    def detect(self, detected_at: int | None = None) -> frozenset[ImageKey]:
        """Read which images are present and in use, before each round or instead of it; return the keys in use.

        Args:
            detected_at: when new images count as first detected; by default now.

        Raises:
            ImageStoreError: the service failed.
        """
        moment = self._clock() if detected_at is None else detected_at
        images = self._service.list()
        containers = self._service.containers()
        with self._lock:
            self._in_use = self._detector.update(images, containers, detected_at=moment, now=self._clock())
            self._count_handlers()
            return self._in_use

    def collect(self, *, dry_run: bool = False) -> CollectionReport:
        """One round: by age, then by space. A dry run removes nothing, sends no event and accepts too little space.

        Raises:
            ImageCollectionError: removals failed, or too little could be freed.
            ImageStoreError: the service failed, or the disk can't be read.
        """
        return self._run(self._round, dry_run=dry_run)

    def delete_unused(self, *, dry_run: bool = False, minimum_age: Duration | None = None) -> CollectionReport:
        """Remove every image that may go, as under disk pressure; ``minimum_age`` replaces the policy's.

        Raises:
            ImageCollectionError: removals failed.
            ImageStoreError: the service failed.
        """
        age = self.policy.minimum_age if minimum_age is None else minimum_age
        return self._run(lambda images, report, now: self._free(images, report, now, age), dry_run=dry_run)

    def stats(self, without: Container[ImageKey] = ()) -> CollectorStats:
        """Numbers of the last detection, without the given images, such as those that a plan would remove."""
        with self._lock:
            records = [record for record in self._detector.records.values() if record.key not in without]
            return CollectorStats(
                images=len(records),
                in_use=sum(record.key in self._in_use for record in records),
                pinned=sum(record.is_pinned for record in records),
                by_handler=_by_handler(records),
            )

    def images(self) -> tuple[ImageUse, ...]:
        """The records of the last detection, in eviction order."""
        with self._lock:
            return tuple(sorted(self._detector.records.values(), key=sort_key))

    def _run(self, work: Callable[[list[ImageUse], CollectionReport, int], None], *, dry_run: bool) -> CollectionReport:
        now, started_at = self._clock(), time.time()
        with self._lock:
            report = self.last_report = CollectionReport(dry_run)
            images, report.spared = candidates(self._detector.records.values(), self.detect(now))
            for _, why in report.spared:
                if why is Spared.NO_ID:
                    self._warn(kubelet_messages.INVALID_IMAGE_ID, "ImageID is not valid, skipping, ImageID: ", report)
            try:
                work(images, report, now)
            finally:
                self._finish(report, started_at)
        return report

    def _round(self, images: list[ImageUse], report: CollectionReport, now: int) -> None:
        policy, remove = self.policy, self._remover(report)
        images = remove_old(images, policy, report, now=now, began=self._began, remove=remove)
        if report.failed:
            listed = aggregate(each.error for each in report.failed)
            message = f"wanted to free images older than {policy.maximum_age}, encountered errors in image deletion: "
            raise ImageCollectionError(message + listed)
        disk = self._disk()
        if report.is_dry_run:
            # As if these were gone, by listed sizes.
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
        self._free(images, report, now, policy.minimum_age)
        if report.freed_bytes < report.target_bytes and not report.is_dry_run:
            message = (
                f"Insufficient free disk space on the node's image filesystem"
                f" ({disk.usage_percent}% of {size_text(disk.capacity_bytes)} used)."
                f" Failed to free sufficient space by deleting unused images (freed {report.freed_bytes} bytes)."
                " Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
            )
            self._warn(kubelet_messages.FREE_DISK_SPACE_FAILED, message, report)
            raise ImageCollectionError(message, freed_bytes=report.freed_bytes)

    def _free(self, images: list[ImageUse], report: CollectionReport, now: int, minimum_age: Duration) -> None:
        free_space(images, report, minimum_age=minimum_age, now=now, remove=self._remover(report))
        if report.failed:
            wanted = _ALL_BYTES if report.target_bytes is None else report.target_bytes
            message = (
                f"wanted to free {wanted} bytes, but freed {report.freed_bytes} bytes space"
                f" with errors in image deletion: {aggregate(each.error for each in report.failed)}"
            )
            raise ImageCollectionError(message, freed_bytes=report.freed_bytes)

    def _remover(self, report: CollectionReport) -> Callable[[ImageUse], str]:
        return (lambda _image: "") if report.is_dry_run else self._remove

    def _remove(self, image: ImageUse) -> str:
        handler = image.key.runtime_handler if self._has_handlers else ""
        try:
            self._service.remove(ImageSpec(image.key.image_id, handler))
        except ImageStoreError as error:
            return runtime_text(error)
        self._detector.records.pop(image.key, None)
        return ""

    def _finish(self, report: CollectionReport, started_at: float) -> None:
        if report.is_dry_run:
            return
        if self._metrics is not None:
            for each in report.removed:
                self._metrics.collected.labels(each.reason).inc()
        self._count_handlers()
        if self._pull_records is not None:
            self._pull_records.prune({key.image_id for key in self._detector.records}, before=started_at)

    def _count_handlers(self) -> None:
        """Count the images of each handler but the default one."""
        if self._metrics is not None:
            counts = _by_handler(self._detector.records.values())
            self._metrics.count_handlers({k: v for k, v in counts.items() if k not in ("", self._default_handler)})

    def _warn(self, reason: str, message: str, report: CollectionReport) -> None:
        if not report.is_dry_run:
            self._recorder(NodeEvent("Warning", reason, message, self._node))


def _by_handler(records: Iterable[ImageUse]) -> dict[str, int]:
    return dict(sorted(Counter(record.key.runtime_handler for record in records).items()))


class CollectionLoop:
    """Runs rounds regularly."""

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
        """Run one round; a failure is logged, and from the second in a row sent as an event. Returns success."""
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
        """Detect images, and collect if the policy ever needs to, until the token is cancelled."""
        try:
            while True:
                if self._collector.policy.is_loop_needed:
                    self.round()
                else:
                    self._detect()
                cancel.wait(self._period.seconds)
        except OperationCancelledError:
            return

    def _detect(self) -> None:
        try:
            self._collector.detect()
        except ImageStoreError as error:
            _LOGGER.warning("images could not be detected: %s", error)
