"""What the tests of EnsureImageExists share: it, over a service in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imagestore.cri import SandboxMetadata
from imagestore.node.credentials import DOCKER_CONFIG_JSON, PullSecret
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.image_manager import EnsureRequest, ImageManager
from imagestore.node.image_names import PullPolicy
from imagestore.node.kubelet_messages import EnsureResult, NodeEvent, ObjectReference
from imagestore.node.metrics import NodeMetrics
from imagestore.node.pull_record_files import PullRecordFiles
from imagestore.node.pull_record_manager import PullManager
from imagestore.node.pull_verification import CredentialVerification
from imagestore.node.puller import Puller
from tests.support.image_services import FakeClock, FakeService, image

if TYPE_CHECKING:
    from pathlib import Path

OFF = FeatureGates(ensure_secret_pulled_images=False)
HANDLERS = FeatureGates(runtime_class_in_image_cri=True, ensure_secret_pulled_images=False)
SUBJECT = ObjectReference("Pod", "web", "default", "uid-1", "spec.containers{web}")
POD = SandboxMetadata("web", "uid-1", "default", {"note": "x"})
PRESENT = "registry.example/app:1"


@dataclass
class Bed:
    """A manager over a service in memory."""

    gates: FeatureGates = OFF
    service: FakeService = field(default_factory=FakeService)
    clock: FakeClock = field(default_factory=FakeClock)
    events: list[NodeEvent] = field(default_factory=list)
    metrics: NodeMetrics = field(default_factory=NodeMetrics)
    times: list[str] = field(default_factory=list)
    records: PullManager | None = None
    qps: float = 0

    def __post_init__(self) -> None:
        self.manager = ImageManager(
            self.service,
            gates=self.gates,
            puller=Puller(self.service, qps=self.qps, clock=self.clock),
            records=self.records,
            recorder=self.events.append,
            metrics=self.metrics,
            pulling_times=self,
            clock=self.clock,
        )

    def started(self, pod_uid: str) -> None:
        self.times.append(f"started {pod_uid}")

    def finished(self, pod_uid: str) -> None:
        self.times.append(f"finished {pod_uid}")

    def ensure(
        self,
        text: str = PRESENT,
        policy: PullPolicy | None = PullPolicy.IF_NOT_PRESENT,
        handler: str = "",
        secrets: tuple[PullSecret, ...] = (),
    ) -> EnsureResult:
        self.events.clear()
        return self.manager.ensure(EnsureRequest(text, POD, policy, handler, secrets, SUBJECT))

    def told(self) -> list[tuple[str, str, str]]:
        assert all(event.subject == SUBJECT for event in self.events)
        return [(event.type, event.reason, event.message) for event in self.events]

    def counted(self) -> list[tuple[str, ...]]:
        (family,) = self.metrics.ensure_requests.collect()
        return [
            (sample.labels["pull_policy"], sample.labels["present_locally"], sample.labels["pull_required"])
            for sample in family.samples
            if sample.name.endswith("_total")
        ]


def present(text: str = PRESENT, handler: str = "") -> FakeService:
    return FakeService(images=[image(text, handler=handler)])


def secret(entries: str, name: str = "pull") -> PullSecret:
    return PullSecret("default", name, f"uid-of-{name}", DOCKER_CONFIG_JSON, {".dockerconfigjson": entries.encode()})


TWO = '{"auths": {"registry.example": {"username": "b", "password": "y"}, "registry.example/app": {"auth": "YTp4"}}}'


def recording(tmp_path: Path, policy: str = "", allowlist: tuple[str, ...] = ()) -> Bed:
    verification = CredentialVerification.parse(policy, allowlist)
    metrics = NodeMetrics()
    records = PullManager(PullRecordFiles(tmp_path), verification, metrics=metrics)
    return Bed(gates=FeatureGates(), records=records, metrics=metrics)
