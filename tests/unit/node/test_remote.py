"""The CRI client as an image service, against our own CRI server; EnsureImageExists through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore import ImageStore, TransferPolicy
from imagestore.cri import CriImageService, ImageSpec, SandboxMetadata
from imagestore.node.embedded import EmbeddedImageService
from imagestore.node.eviction import CollectionPolicy, DiskUsage
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.image_gc import ImageCollector
from imagestore.node.image_manager import EnsureRequest, ImageManager
from imagestore.node.image_names import PullPolicy
from imagestore.node.kubelet_messages import ErrorClass
from imagestore.testing import build_index, layer
from imagestore.util.durations import Duration
from tests.support.cri_server import cri_server
from tests.support.image_service_contract import Bench, HandlerContract
from tests.support.linux_node import AGAIN, APP, CONFIG, HOST, MISSING
from tests.support.node import node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GATES = FeatureGates(runtime_class_in_image_cri=True, ensure_secret_pulled_images=False)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    app = build_index(("linux/amd64", "linux/arm64"), seed="app", shared=[layer("shared")])
    with (
        node(tmp_path, {APP: app, AGAIN: app}, host=HOST, text=CONFIG) as bed,
        cri_server(bed.store) as server,
        CriImageService(server.endpoint) as service,
    ):
        yield Bench(service, APP, AGAIN, MISSING, "arm")


class TestContract(HandlerContract):
    """Our CRI server, seen through our CRI client, keeps the contract."""


def test_images_are_ensured_and_collected_by_handler(bench: Bench) -> None:
    manager = ImageManager(bench.service, gates=GATES)
    pod = SandboxMetadata("web", "uid", "default")
    first = manager.ensure(EnsureRequest(APP, pod, PullPolicy.IF_NOT_PRESENT))
    arm = manager.ensure(EnsureRequest(APP, pod, PullPolicy.IF_NOT_PRESENT, "arm"))
    assert (first.was_pulled, arm.was_pulled) == (True, True)
    assert first.image_ref != arm.image_ref
    assert not manager.ensure(EnsureRequest(APP, pod, PullPolicy.NEVER, "arm")).was_pulled
    collector = ImageCollector(
        bench.service, CollectionPolicy(90, 80, Duration(0)), gates=GATES, disk=lambda: DiskUsage(1000, 500)
    )
    report = collector.delete_unused()
    assert sorted(each.image.key.runtime_handler for each in report.removed) == ["arm", "runc"]
    assert bench.service.status(ImageSpec(APP, "arm")) is None


def test_an_unavailable_registry_keeps_its_class_over_the_wire(tmp_path: Path) -> None:
    reference = "127.0.0.1:1/team/app:1"
    with (
        ImageStore(tmp_path, host=HOST, transfer=TransferPolicy(attempts=1)) as store,
        cri_server(store) as server,
        CriImageService(server.endpoint) as service,
    ):
        over_wire = ImageManager(service, gates=GATES).ensure(EnsureRequest(reference))
        direct = ImageManager(EmbeddedImageService(store), gates=GATES).ensure(EnsureRequest(reference))
    assert over_wire.error is direct.error is ErrorClass.REGISTRY_UNAVAILABLE
    assert over_wire.message == direct.message
    assert direct.message.startswith(f"image pull failed for {reference} because the registry is unavailable: ")
