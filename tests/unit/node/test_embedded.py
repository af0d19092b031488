"""The store as an image service: the contract, and what only it tells."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from imagestore import ImageStore, Secret
from imagestore.cri import ContainerImage, ImageSpec
from imagestore.errors import AuthenticationError
from imagestore.node.embedded import EmbeddedImageService
from imagestore.registry import AuthConfig, connect
from imagestore.testing import BasicAuth, Registry, build_index, layer
from tests.support.image_service_contract import Bench, HandlerContract
from tests.support.linux_node import AGAIN, APP, CONFIG, HOST, MISSING
from tests.support.node import node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    app = build_index(("linux/amd64", "linux/arm64"), seed="app", shared=[layer("shared")])
    images = {APP: app, AGAIN: app}
    with node(tmp_path, images, host=HOST, text=CONFIG) as bed:
        yield Bench(EmbeddedImageService(bed.store), APP, AGAIN, MISSING, "arm")


class TestContract(HandlerContract):
    """The embedded store keeps the contract."""


def test_the_configurations_sandbox_image_is_pinned(bench: Bench) -> None:
    bench.service.pull(ImageSpec(bench.image))
    assert [each.is_pinned for each in bench.service.list()] == [False]
    bench.service.pull(ImageSpec(bench.again))
    assert [each.is_pinned for each in bench.service.list()] == [True]


def test_inspection_tells_what_the_store_knows(bench: Bench) -> None:
    bench.service.pull(ImageSpec(bench.image, "arm"))
    details = bench.service.inspect(ImageSpec(bench.image, "arm"))
    assert details is not None
    told = json.loads(details.info["imagestore"])
    assert (told["runtimeHandler"], told["platform"]) == ("arm", "linux/arm64")


def test_containers_are_those_of_the_embedder(tmp_path: Path) -> None:
    mine = (ContainerImage("c1", "sha256:1"),)
    with node(tmp_path, {}, host=HOST, text=CONFIG) as bed:
        assert EmbeddedImageService(bed.store, containers=lambda: mine).containers() == mine


def test_an_image_that_is_noted_as_in_use_is_used_by_a_container(tmp_path: Path) -> None:
    mine = ContainerImage("c1", "sha256:1")
    app = build_index(("linux/amd64", "linux/arm64"), seed="app")
    with node(tmp_path, {APP: app}, host=HOST, text=CONFIG) as bed:
        native, arm = bed.store.pull(APP), bed.store.pull(APP, runtime_handler="arm")
        service = EmbeddedImageService(bed.store, containers=lambda: [mine])
        bed.store.note_in_use([(str(arm.id), "arm")], holder="test")
        used = [(each.image_id, each.runtime_handler) for each in service.containers()]
        assert used == [("sha256:1", None), (str(arm.id), "arm")]
        bed.store.note_in_use([(str(native.id), "")], holder="test")
        assert [each.image_id for each in service.containers()] == ["sha256:1", str(native.id)]


def test_credentials_of_a_pull_are_used_for_it_only(tmp_path: Path) -> None:
    registry = Registry({APP: build_index(("linux/amd64",), seed="app")}, auth=BasicAuth({"robot": "right"}))
    with connect(transport=registry.transport) as client, ImageStore(tmp_path, host=HOST, registry=client) as store:
        service = EmbeddedImageService(store)
        wrong = AuthConfig(username="robot", password=Secret("wrong"))
        with pytest.raises(AuthenticationError):
            service.pull(ImageSpec(APP), auth=wrong)
        service.pull(ImageSpec(APP), auth=AuthConfig(username="robot", password=Secret("right")))
        with pytest.raises(AuthenticationError):
            service.pull(ImageSpec(APP))
