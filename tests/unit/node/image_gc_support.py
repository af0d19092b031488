"""What the tests of image collection share: a collector over a service in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from imagestore.cri import ContainerImage
from imagestore.node.eviction import CollectionPolicy, DiskUsage
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.image_gc import ImageCollector
from imagestore.node.kubelet_messages import NodeEvent, ObjectReference
from imagestore.node.metrics import NodeMetrics
from imagestore.node.pull_record_manager import PullManager
from imagestore.util.durations import Duration
from tests.support.image_services import FakeClock, FakeService, image

OFF = FeatureGates()
ON = FeatureGates(runtime_class_in_image_cri=True)
NODE = ObjectReference("Node", "edge-1")


def seconds(number: float) -> Duration:
    return Duration.of_seconds(number)


@dataclass
class Bed:
    """A collector over a service in memory, on a disk of 1000 bytes."""

    gates: FeatureGates = OFF
    policy: CollectionPolicy = field(default_factory=lambda: CollectionPolicy(90, 80, Duration(0)))
    disk: DiskUsage = field(default_factory=lambda: DiskUsage(1000, 500))
    sandbox_image: str = ""
    default_handler: str = ""
    records: PullManager | None = None
    service: FakeService = field(default_factory=FakeService)
    clock: FakeClock = field(default_factory=FakeClock)
    events: list[NodeEvent] = field(default_factory=list)
    metrics: NodeMetrics = field(default_factory=NodeMetrics)

    def __post_init__(self) -> None:
        self.collector = ImageCollector(
            self.service,
            self.policy,
            gates=self.gates,
            disk=lambda: self.disk,
            sandbox_image=self.sandbox_image,
            recorder=self.events.append,
            node=NODE,
            metrics=self.metrics,
            default_handler=self.default_handler,
            records=self.records,
            clock=self.clock,
        )

    def have(self, *ids: str, size: int = 100) -> None:
        self.service.images += [image(each, size) for each in ids]
        self.collector.detect()

    def use(self, *ids: str) -> None:
        """A look while containers use the images; then they end."""
        self.clock.pass_seconds(1)
        self.service.in_use = [ContainerImage(f"c-{each}", each) for each in ids]
        self.collector.detect()
        self.service.in_use = []
        self.clock.pass_seconds(1)

    def removed(self) -> list[str]:
        return [spec.image for spec in self.service.removed]

    def told(self) -> list[tuple[str, str, str]]:
        assert all(event.subject == NODE for event in self.events)
        return [(event.type, event.reason, event.message) for event in self.events]
