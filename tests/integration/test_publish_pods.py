"""One reference, two runtime handlers, two programs that run, by each way of content and with each snapshotter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from imagestore.publish import ContentWay
from tests.support.containerd_cri import GUEST_HANDLER
from tests.support.patience import until
from tests.support.peers import DockerRegistry
from tests.support.pod_node import PodNode, both_run, halted, pod_node

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=["overlayfs", "native"])
def any_node(pod_registry: DockerRegistry, request: pytest.FixtureRequest) -> Iterator[PodNode]:
    with pod_node(pod_registry, snapshotter=request.param) as made:
        yield made


@pytest.fixture(params=[ContentWay.LINKED, ContentWay.OWN_FILE, ContentWay.SENT], ids=lambda way: way.value)
def node(any_node: PodNode, request: pytest.FixtureRequest) -> Iterator[PodNode]:
    any_node.way = request.param
    with any_node.test():
        yield any_node
        assert any_node.log("containerd connected")[0]["way"] == request.param.value
    any_node.close()


def test_one_reference_runs_two_programs_until_nothing_is_left(node: PodNode) -> None:
    host, guest = both_run(node, policy="Always")
    assert host.image_id != guest.image_id
    assert node.known() == set(node.kubelet.images())
    assert (node.layers_kept(), node.rests()) == (set(), [])

    # Both sides are killed; everything is known again, and the programs have not noticed.
    node.containerd.kill()
    node.kill()
    node.containerd.start()
    node.start()
    both_run(node, policy="Never")
    assert [node.kubelet.state(each) for each in (host, guest)] == ["CONTAINER_RUNNING"] * 2

    # One handler's image goes, under its running containers.
    node.kubelet.remove(node.app, GUEST_HANDLER)
    assert (guest.image_id in node.known(), host.image_id in node.known()) == (False, True)
    assert guest.image_id not in node.containerd.blobs()
    assert node.kubelet.state(guest) == "CONTAINER_RUNNING"
    before = len(node.snapshots())
    node.kubelet.remove_pods()
    # containerd collects after so many changes only, or when the end of a lease waits for it.
    with node.client() as client:
        client.delete_lease(client.create_lease())
    # The chains of three layers and of the sandbox's stay; those of the guest's go with its containers.
    until(lambda: len(node.snapshots()) == 4, f"the guest's layers are collected: {before}, {node.snapshots()}")


@pytest.mark.parametrize("node", [ContentWay.LINKED], indirect=True)
def test_a_wiped_containerd_runs_everything_again_without_a_registry(node: PodNode) -> None:
    both_run(node, policy="Always")
    with halted(node.registry):
        node.containerd.wipe()
        node.containerd.start()
        # A kubelet asks again until the sandbox image is there.
        until(lambda: node.known() == set(node.kubelet.images()), "containerd has everything again")
        both_run(node, policy="Never")
    assert node.layers_kept() == set()
