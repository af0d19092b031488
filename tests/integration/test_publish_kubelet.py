"""What a kubelet does with images, call by call, while imagestore publishes them into containerd."""

from __future__ import annotations

import signal

import pytest

from imagestore.testing import build_artifact, layer
from tests.support.containerd_cri import GUEST_HANDLER, HOST_HANDLER
from tests.support.kubelet import Call, CallError
from tests.support.patience import until
from tests.support.pod_node import PodNode, both_run
from tests.support.runnable_images import GUEST, HOST, runnable_image, runnable_index

pytestmark = pytest.mark.integration


def test_a_container_runs_as_the_user_of_an_image_that_one_handler_has(node: PodNode) -> None:
    """The kubelet asks for the user without a handler, and takes an absent image for one of root."""
    image = node.registry.push("users", "1", runnable_index(users=["", "2000"], seed="users"))
    container = node.kubelet.run(image, GUEST_HANDLER)
    assert (container.line, node.kubelet.uid(container)) == (GUEST, 2000)
    assert node.log("images of one name have different users; the kubelet asks for one of them only") == []
    node.kubelet.run(image, HOST_HANDLER)
    node.kubelet.run(image, GUEST_HANDLER)
    (warning,) = node.log("images of one name have different users; the kubelet asks for one of them only")
    assert warning["users"] == ["", "2000"]


def test_image_collection_spares_what_pods_use_and_the_sandbox_image(node: PodNode) -> None:
    used = both_run(node)
    unused = node.kubelet.pull(node.registry.push("unused", "1", runnable_index(seed="unused")), GUEST_HANDLER)
    pause = node.kubelet.pull(node.pause)
    listed = node.kubelet.images()
    assert {image_id: each["spec"].get("runtime_handler", "") for image_id, each in listed.items()} == dict.fromkeys(
        [*(each.image_id for each in used), unused, pause], ""
    )
    assert listed[pause]["pinned"]
    assert node.kubelet.collect_images() == [unused]
    assert node.known() == set(node.kubelet.images()) == {pause, *(each.image_id for each in used)}
    node.kubelet.remove_pods()
    assert sorted(node.kubelet.collect_images()) == sorted(each.image_id for each in used)
    both_run(node)


def test_one_image_of_two_handlers_is_one_entry_and_outlives_one_of_them(node: PodNode) -> None:
    image = node.registry.push("single", "1", runnable_image(GUEST, seed="single"))
    # The host's handler takes it too, since nobody declared its platform.
    image_id = node.kubelet.pull(image, HOST_HANDLER)
    assert node.kubelet.pull(image, GUEST_HANDLER) == image_id
    assert len(node.kubelet.images()) == 2
    node.kubelet.remove(image, HOST_HANDLER)
    assert node.kubelet.run(image, GUEST_HANDLER, policy="Never").line == GUEST
    node.kubelet.remove(image_id)
    assert image_id not in node.known()


def test_the_first_file_system_is_the_one_that_fills(node: PodNode) -> None:
    """A kubelet compares only the first one with its thresholds."""
    both_run(node)
    first, second = node.kubelet.call("ImageFsInfo")["image_filesystems"]
    assert first["fs_id"]["mountpoint"].endswith("io.containerd.snapshotter.v1.overlayfs")
    assert second["fs_id"]["mountpoint"] == str(node.store / "content")
    assert int(first["used_bytes"]["value"]) >= int(second["used_bytes"]["value"]) > 0


def test_without_containerd_lists_answer_and_no_image_is_present(node: PodNode) -> None:
    both_run(node)
    node.kubelet.remove_pods()
    listed = node.kubelet.images()
    node.containerd.stop()
    try:
        assert node.kubelet.images() == listed
        assert node.kubelet.call("ImageFsInfo")["image_filesystems"]
        calls = [
            Call("ImageStatus", {"image": {"image": node.app}}),
            Call("PullImage", {"image": {"image": node.app, "runtime_handler": GUEST_HANDLER}}),
        ]
        for answer in node.kubelet.at_once(calls):
            assert isinstance(answer, CallError)
            assert answer.code == "UNAVAILABLE", answer
        # The store is the truth: what is removed now goes later.
        node.kubelet.remove(node.app, GUEST_HANDLER)
    finally:
        node.containerd.start()
    until(lambda: node.known() == set(node.kubelet.images()), "containerd has what the store has")
    assert node.kubelet.run(node.app, HOST_HANDLER, policy="Never").line == HOST


def test_a_server_starts_before_containerd_and_answers_with_what_it_has(node: PodNode) -> None:
    both_run(node)
    node.kubelet.remove_pods()
    node.stop()
    node.containerd.stop()
    try:
        node.start()
        assert len(node.kubelet.images()) == 3
        (first, _) = node.kubelet.call("ImageFsInfo")["image_filesystems"]
        assert first["fs_id"]["mountpoint"].startswith(str(node.containerd.folder))
    finally:
        node.containerd.start()
    until(lambda: node.log("containerd is followed"), "the server has found containerd")
    both_run(node, policy="Never")


def test_an_artifact_is_pulled_and_said_not_to_run(node: PodNode) -> None:
    image = node.registry.push("artifact", "1", build_artifact("application/vnd.example", {"model": b"weights"}))
    image_id = node.kubelet.pull(image)
    assert node.kubelet.status(image) is not None
    (line,) = node.log("not runnable")
    assert (line["image_id"], "artifact" in line["reason"]) == (image_id, True)
    assert image_id not in node.known()
    assert node.rests() == []


def test_a_hundred_layers(node: PodNode) -> None:
    image = node.registry.push(
        "high",
        "1",
        runnable_image(HOST, seed="high", layers=[layer(f"high {number}", size=512) for number in range(98)]),
    )
    assert node.kubelet.run(image).line == HOST


def test_other_snapshotters_are_served_after_a_reload(node: PodNode) -> None:
    both_run(node)
    text = node.containerd.config.read_text()
    assert set(node.containerd.snapshots("native")) == set()
    try:
        node.containerd.config.write_text(text.replace('snapshotter = "overlayfs"', 'snapshotter = "native"'))
        node.server.send(signal.SIGHUP)
        until(lambda: len(node.containerd.snapshots("native")) == 7, "all chains are there for the other snapshotter")
        node.kubelet.remove_pods()
        node.containerd.stop()
        node.containerd.start()
        both_run(node, policy="Never")
        node.kubelet.remove_pods()
    finally:
        node.containerd.config.write_text(text)
        node.containerd.stop()
        node.containerd.start()
    node.server.send(signal.SIGHUP)
    both_run(node)


def restart_with(node: PodNode, text: str) -> None:
    """Start both sides again with another configuration."""
    node.stop()
    node.containerd.stop()
    node.containerd.config.write_text(text)
    node.containerd.start()
    node.start()
    until(lambda: node.log("containerd is followed"), "the server has found containerd")


@pytest.mark.parametrize("content", ["link", "copy"])
def test_layers_that_are_kept(node: PodNode, content: str) -> None:
    text = node.containerd.config.read_text()
    node.kubelet.remove(node.pause)
    try:
        restart_with(node, f'{text}\n[plugins."io.imagestore.publish.v1"]\ncontent = "{content}"\n')
        node.kubelet.pull(node.pause)
        both_run(node)
        checked = node.containerd.ctr("images", "check")
        assert ("incomplete" in checked, checked.count("complete (")) == (False, len(node.containerd.images()))
        node.kubelet.remove(node.app, GUEST_HANDLER)
        assert len(node.layers_kept()) == 3 + 1
        node.kubelet.remove_pods()
        node.kubelet.remove(node.app)
    finally:
        restart_with(node, text)
        node.kubelet.pull(node.pause)
