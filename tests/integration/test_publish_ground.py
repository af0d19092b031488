"""Debian's containerd without a publisher: it runs programs of both platforms, but gives both handlers one image."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from imagestore import platforms
from tests.support.containerd_cri import GUEST_HANDLER, HOST_HANDLER, CriContainerd, Pods, pod_containerd
from tests.support.kubelet import Kubelet
from tests.support.peers import DockerRegistry, docker_registry
from tests.support.runnable_images import GUEST, HOST, PAUSE, runnable_image, runnable_index

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as running:
        running.push("pause", "1", PAUSE)
        running.push("app", "1", runnable_index(layers=2))
        for platform in (HOST, GUEST):
            running.push("alone", platform.replace("/", "-"), runnable_image(platform, user="2000"))
        yield running


@pytest.fixture(scope="module", params=["overlayfs", "native"])
def containerd(registry: DockerRegistry, request: pytest.FixtureRequest) -> Iterator[CriContainerd]:
    pods = Pods(f"{registry.address}/pause:1", platforms.parse(GUEST), request.param)
    with pod_containerd(pods) as running:
        yield running


@pytest.fixture
def kubelet(containerd: CriContainerd) -> Iterator[Kubelet]:
    with Kubelet(containerd.endpoint) as started:
        yield started
        started.remove_pods()


def test_containerd_alone_gives_both_handlers_the_hosts_image(registry: DockerRegistry, kubelet: Kubelet) -> None:
    app = f"{registry.address}/app:1"
    containers = [kubelet.run(app, handler, policy="Always") for handler in (HOST_HANDLER, GUEST_HANDLER)]
    assert {each.line for each in containers} == {HOST}
    assert [kubelet.state(each) for each in containers] == ["CONTAINER_RUNNING"] * 2


def test_programs_of_both_platforms_run_as_their_user(registry: DockerRegistry, kubelet: Kubelet) -> None:
    for platform in (HOST, GUEST):
        container = kubelet.run(f"{registry.address}/alone:{platform.replace('/', '-')}")
        assert (container.line, kubelet.uid(container)) == (platform, 2000)


def test_containers_outlive_their_containerd_and_images_dont_outlive_its_root(
    registry: DockerRegistry, containerd: CriContainerd, kubelet: Kubelet
) -> None:
    container = kubelet.run(f"{registry.address}/app:1")
    containerd.kill()
    containerd.start()
    assert kubelet.state(container) == "CONTAINER_RUNNING"
    assert container.image_id in kubelet.images()
    containerd.wipe()
    containerd.start()
    assert (kubelet.images(), kubelet.pods()) == ({}, [])


def test_image_collection_removes_what_no_container_uses(registry: DockerRegistry, kubelet: Kubelet) -> None:
    container = kubelet.run(f"{registry.address}/app:1")
    unused = kubelet.pull(f"{registry.address}/alone:{GUEST.replace('/', '-')}")
    assert unused in kubelet.collect_images()
    assert list(kubelet.images()) == [container.image_id]
