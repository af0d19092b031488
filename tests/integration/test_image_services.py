"""The contract of image services over a real Docker Engine and a real container runtime; ensure and gc through them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from imagestore import platforms
from imagestore.cri import CriImageService, ImageSpec, SandboxMetadata
from imagestore.errors import ImageStoreError
from imagestore.events import PartAdvanced
from imagestore.node import CollectionPolicy, DockerImageService, EnsureRequest, ImageCollector, ImageManager
from imagestore.node.docker.http import EngineConnection
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.kubelet_messages import ErrorClass
from imagestore.testing import build_index, layer
from imagestore.util.durations import Duration
from tests.support.containerd_cri import containerd_cri
from tests.support.dockerd import dockerd
from tests.support.image_service_contract import Bench, HandlerContract, ImageServiceContract
from tests.support.peers import docker_registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.events import Event
    from imagestore.node import ImageService

pytestmark = pytest.mark.integration
GATES = FeatureGates(runtime_class_in_image_cri=True, ensure_secret_pulled_images=False)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    app = build_index(("linux/amd64", "linux/arm64"), seed="node", shared=[layer("shared")])
    with docker_registry(tmp_path_factory.mktemp("registry")) as registry:
        first = registry.push("team/app", "1", app)
        again = registry.push("team/app", "2", app)
        yield {"image": first, "again": again, "missing": f"{registry.address}/team/app:9"}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with dockerd() as socket_path:
        yield socket_path


@pytest.fixture(scope="module")
def runtime() -> Iterator[str]:
    with containerd_cri() as endpoint:
        yield endpoint


def emptied(service: ImageService) -> None:
    for image in service.list():
        service.remove(ImageSpec(image.id))


class TestDocker(HandlerContract):
    """A real Docker Engine keeps the contract, runtime handlers included."""

    @pytest.fixture
    def bench(self, engine: str, references: Mapping[str, str]) -> Iterator[Bench]:
        service = DockerImageService(engine, platforms={"arm": platforms.parse("linux/arm64")})
        emptied(service)
        yield Bench(service, handler="arm", **references)
        service.close()

    def test_progress_is_told(self, bench: Bench) -> None:
        events: list[Event] = []
        bench.service.pull(ImageSpec(bench.image), observer=events.append)
        assert any(isinstance(event, PartAdvanced) and event.total for event in events)

    def test_handlers_pulls_leave_every_tag_and_image(self, bench: Bench, engine: str) -> None:
        both = {"arm": platforms.parse("linux/arm64"), "amd": platforms.parse("linux/amd64")}
        with contextlib.closing(DockerImageService(engine, platforms=both)) as service:
            default = service.pull(ImageSpec(bench.image))
            arm = service.pull(ImageSpec(bench.image, "arm"))
            # The name with the index's digest is the arm image's, which has no other one.
            assert service.pull(ImageSpec(bench.image, "amd")) == default
            assert service.pull(ImageSpec(bench.image, "arm")) == arm
            tags = {each.id: each.repo_tags for each in service.list()}
            assert {default, arm} == set(tags)
            assert bench.image in tags[default]
            for handler, image_id in (("", default), ("arm", arm), ("amd", default)):
                found = service.status(ImageSpec(bench.image, handler))
                assert found is not None
                assert found.id == image_id

    def test_a_tag_of_the_users_own_stays(self, bench: Bench, engine: str) -> None:
        own = bench.service.pull(ImageSpec(bench.again))
        connection = EngineConnection(engine, timeout_seconds=60)
        with contextlib.closing(connection):
            name, _, tag = bench.image.rpartition(":")
            connection.request("POST", f"/images/{own}/tag", query={"repo": name, "tag": tag})
            arm = bench.service.pull(ImageSpec(bench.image, "arm"))
            assert arm != own
            assert connection.json(f"/images/{bench.image}/json")["Id"] == own
            with pytest.raises(ImageStoreError):
                bench.service.pull(ImageSpec(bench.missing, "arm"))
            assert connection.json(f"/images/{bench.missing}/json") is None

    def test_a_tag_that_nobody_has_is_the_handlers(self, bench: Bench, engine: str) -> None:
        arm = bench.service.pull(ImageSpec(bench.image, "arm"))
        with contextlib.closing(EngineConnection(engine, timeout_seconds=60)) as connection:
            assert connection.json(f"/images/{bench.image}/json")["Id"] == arm
        assert bench.service.status(ImageSpec(bench.image)) is None

    def test_images_are_ensured_and_collected(self, bench: Bench) -> None:
        ensured_and_collected(bench)


class TestContainerd(ImageServiceContract):
    """A real containerd keeps the contract; it takes no notice of handlers."""

    @pytest.fixture
    def bench(self, runtime: str, references: Mapping[str, str]) -> Iterator[Bench]:
        with CriImageService(runtime) as service:
            emptied(service)
            yield Bench(service, handler="", **references)

    def test_images_are_ensured_and_collected(self, bench: Bench) -> None:
        ensured_and_collected(bench)


def ensured_and_collected(bench: Bench) -> None:
    manager = ImageManager(bench.service, gates=GATES)
    pod = SandboxMetadata("web", "uid", "default")
    assert manager.ensure(EnsureRequest(bench.image, pod)).was_pulled
    assert not manager.ensure(EnsureRequest(bench.image, pod)).was_pulled
    assert manager.ensure(EnsureRequest(bench.missing, pod)).error is ErrorClass.PULL
    assert manager.ensure(EnsureRequest(bench.missing, pod)).error is ErrorClass.BACK_OFF
    collector = ImageCollector(bench.service, CollectionPolicy(90, 80, Duration(0)), gates=GATES)
    plan = collector.delete_unused(dry_run=True)
    assert len(bench.service.list()) == 1
    assert [each.image.key for each in collector.delete_unused().removed] == [each.image.key for each in plan.removed]
    assert [*bench.service.list()] == []
