"""Publishing beside others who change the same containerd: ctr, containerd's own pulls, another store, commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from imagestore.cli.exit_codes import ExitStatus
from imagestore.testing import layer
from tests.support.containerd_cri import GUEST_HANDLER, HOST_HANDLER
from tests.support.kubelet import Call, CallError
from tests.support.patience import until
from tests.support.peers import DockerRegistry
from tests.support.pod_node import PodNode, both_run, collecting, halted, pod_node
from tests.support.runnable_images import GUEST, HOST, runnable_index
from tests.support.server import short_folder

pytestmark = pytest.mark.integration


@contextlib.contextmanager
def other_server(node: PodNode) -> Iterator[PodNode]:
    """Another store that publishes into the same containerd."""
    with short_folder() as folder:
        other = PodNode(folder, node.containerd, node.registry)
        with other.kubelet, other.direct:
            other.start()
            try:
                yield other
            finally:
                other.close()


def remove_foreign(node: PodNode) -> None:
    """Remove what containerd has on its own account."""
    for image_id in node.known() - set(node.kubelet.images()):
        node.direct.remove(image_id)
    until(lambda: node.known() == set(node.kubelet.images()), "containerd's own images are gone")


@pytest.mark.parametrize("is_at_once", [True, False])
def test_what_ctr_removes_comes_back(node: PodNode, is_at_once: bool) -> None:
    """By an event, or by the next status call, whichever is first."""
    _, guest = both_run(node)
    names = set(node.containerd.images())
    for name in names:
        if guest.image_id == name or name == node.app:
            node.containerd.ctr("images", "rm", "--sync", name)
    if not is_at_once:
        until(lambda: set(node.containerd.images()) == names, "the names are there again")
    both_run(node, policy="Never")
    assert set(node.containerd.images()) == names


def test_what_crictl_removes_at_containerd_comes_back(node: PodNode) -> None:
    host, guest = both_run(node)
    node.kubelet.remove_pods()
    for container in (host, guest):
        node.direct.remove(container.image_id)
    both_run(node, policy="Never")


def test_a_name_that_ctr_copied_stays(node: PodNode) -> None:
    """ctr copies the labels by which a record is known as imagestore's."""
    node.kubelet.pull(node.app, HOST_HANDLER)
    node.containerd.ctr("images", "tag", node.app, "example.com/mine:1")
    node.kubelet.remove(node.app)
    assert "example.com/mine:1" in node.containerd.images()
    assert node.direct.run("example.com/mine:1", policy="Never").line == HOST
    node.kubelet.remove_pods()
    node.containerd.ctr("images", "rm", "--sync", "example.com/mine:1")
    # containerd's CRI made a name of the id by itself.
    for name in node.containerd.images():
        if name.startswith("sha256:") and name not in node.kubelet.images():
            node.containerd.ctr("images", "rm", "--sync", name)


def test_containerds_own_pull_of_the_same_image(node: PodNode) -> None:
    pulls = [Call("PullImage", node.kubelet.pull_request(node.app, HOST_HANDLER))] * 2
    with ThreadPoolExecutor(2) as pool, collecting(node.containerd):
        for _ in range(5):
            answers = [*pool.map(lambda kubelet: kubelet.at_once(pulls), (node.direct, node.kubelet))]
            assert not any(isinstance(each, CallError) for answer in answers for each in answer), answers
            both_run(node)
            node.kubelet.remove_pods()
            node.remove_app()
            remove_foreign(node)


def test_two_stores_leave_each_others_images(node: PodNode) -> None:
    with other_server(node) as other:
        both_run(node)
        both_run(other)
        node.remove_app()
        until(lambda: node.app in node.containerd.images(), "the other store's record has the name")
        both_run(other, policy="Never")
        node.kubelet.remove_pods()
        other.remove_app()
        until(lambda: len(node.known()) == 1, "only the sandbox image stays")


def test_containerds_content_is_not_fetched_again(node: PodNode) -> None:
    """What containerd pulled itself comes from its folder, although the registry has lost the layers."""
    big = layer("kept by containerd", size=1 << 20)
    image = node.registry.push("kept", "1", runnable_index(shared=[big], seed="kept"))
    path = node.registry.blob_path(big.digest.encoded)
    node.direct.pull(image)
    path.rename(path.with_name("away"))
    try:
        assert node.kubelet.run(image, HOST_HANDLER).line == HOST
    finally:
        path.with_name("away").rename(path)
        node.kubelet.remove_pods()
        node.kubelet.remove(image)
        remove_foreign(node)


def test_commands_beside_a_server_and_without_one(node: PodNode) -> None:
    node.imagestore("pull", node.app, "--runtime-handler", GUEST_HANDLER, "--runtime-handler", HOST_HANDLER)
    node.imagestore("publish")
    assert len(node.known()) == 3
    refused = node.imagestore("unpublish", "--all", status=ExitStatus.STORE)
    assert "would bring the images back" in refused
    node.stop()
    node.imagestore("unpublish", "--all", "--address", node.containerd.endpoint)
    assert (node.containerd.images(), node.containerd.blobs()) == ({}, set())
    node.imagestore("publish", "--address", node.containerd.endpoint)
    assert (len(node.known()), node.rests()) == (3, [])
    node.start()
    both_run(node, policy="Never")


def test_sixteen_pulls_at_once_with_common_layers_under_collections(node: PodNode) -> None:
    common = [layer(f"common {number}", size=100_000) for number in range(4)]
    images = [
        node.registry.push(f"many-{number}", "1", runnable_index(shared=common, seed=f"many {number}"))
        for number in range(8)
    ]
    calls = [
        Call("PullImage", node.kubelet.pull_request(image, handler))
        for image in images
        for handler in (HOST_HANDLER, GUEST_HANDLER)
    ]
    with collecting(node.containerd) as collections:
        answers = node.kubelet.at_once(calls)
        assert not any(isinstance(each, CallError) for each in answers), answers
        lines = [node.kubelet.run(image, GUEST_HANDLER, policy="Never").line for image in images]
    assert lines == [GUEST] * len(images)
    assert collections["done"] > len(images)
    assert node.rests() == []


def test_pulls_that_are_cancelled_and_repeated_under_collections(node: PodNode) -> None:
    layers = [layer(f"cancelled {number}", size=300_000) for number in range(5)]
    image = node.registry.push("cancelled", "1", runnable_index(shared=layers, seed="cancelled"))
    request = node.kubelet.pull_request(image, GUEST_HANDLER)
    with collecting(node.containerd):
        for number in range(50):
            (answer,) = node.kubelet.at_once([Call("PullImage", request, seconds=0.004 * number)])
            if not isinstance(answer, CallError):
                node.kubelet.remove(image)
        assert node.kubelet.run(image, GUEST_HANDLER).line == GUEST
    until(lambda: node.rests() == [], "nothing is left of cancelled pulls")


def test_pulls_and_removals_at_once(node: PodNode) -> None:
    pull = Call("PullImage", node.kubelet.pull_request(node.app, GUEST_HANDLER))
    remove = Call("RemoveImage", {"image": {"image": node.app, "runtime_handler": GUEST_HANDLER}})
    with collecting(node.containerd):
        for _ in range(20):
            answers = node.kubelet.at_once([pull, remove, pull, remove])
            codes = {each.code for each in answers if isinstance(each, CallError)}
            assert codes <= {"UNAVAILABLE"}, answers
        both_run(node)
    assert node.known() == set(node.kubelet.images())


def test_containerd_reads_the_content_from_the_store(pod_registry: DockerRegistry) -> None:
    """By its proxy plugin: no byte is sent, and none is linked."""
    with short_folder() as folder, pod_node(pod_registry, content=folder / "content.sock") as node:
        node.start("--proxy-content", f"unix://{folder}/content.sock")
        node.containerd.start()
        until(lambda: node.log("containerd is followed"), "the server has found containerd")
        node.kubelet.pull(node.pause)
        for container in both_run(node):
            assert set(node.ways(container.image_id)) <= {"present"}
        with halted(pod_registry):
            both_run(node, policy="Never")


def test_a_containerd_that_shares_no_content_between_namespaces_is_sent_it(pod_registry: DockerRegistry) -> None:
    with pod_node(pod_registry, is_isolated=True) as node:
        node.start()
        until(lambda: node.log("containerd connected"), "the server has found containerd")
        assert node.log("containerd connected")[-1]["way"] == "sent"
        assert "sharing policy" in node.log("containerd connected")[-1]["reason"]
        node.kubelet.pull(node.pause)
        for container in both_run(node):
            assert "sent" in node.ways(container.image_id)
