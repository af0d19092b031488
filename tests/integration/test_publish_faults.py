"""Publishing when something fails: kills at every step, damage, leases that somebody ends, a full disk."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from imagestore import Digest
from imagestore.testing import layer, synthetic_layer
from tests.support.containerd_cri import GUEST_HANDLER
from tests.support.kubelet import Call, CallError
from tests.support.patience import until
from tests.support.pod_node import PodNode, both_run, collecting, containerd_client
from tests.support.runnable_images import GUEST, runnable_index

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.testing import Image

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
#: Each place where the publisher may be killed, and how often it is reached before.
STEPS = [
    *("publish-lease:1", "publish-apply:2", "publish-place:2", "publish-commit:2", "publish-snapshot:3"),
    *("publish-config:1", "publish-manifest:1", "publish-records:1", "publish-record:2", "publish-end:1"),
]


def guest_layers(image: Image) -> list[Digest]:
    """The digests of the guest's layers, the lowest first."""
    return [each.digest for each in image.manifests[1].layers]


def damage(path: Path) -> None:
    """Change a byte in the middle of a file that nobody may write, in another file of the same size."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    replacement = path.with_name("damaged")
    replacement.write_bytes(data)
    replacement.chmod(0o444)
    replacement.rename(path)


@pytest.mark.parametrize("step", STEPS)
def test_a_publisher_killed_at_a_step_is_continued_by_the_next(node: PodNode, step: str) -> None:
    node.stop()
    node.start(environment={"IMAGESTORE_FAILPOINT": step})
    with pytest.raises(CallError, match="UNAVAILABLE"):
        node.kubelet.pull(node.app, GUEST_HANDLER)
    assert node.wait_for_end() == -signal.SIGKILL
    node.start()
    until(lambda: node.log("containerd is followed"), "the server has found containerd")
    until(lambda: node.rests() == [], "the lease of the killed publisher is ended")
    assert node.kubelet.run(node.app, GUEST_HANDLER).line == GUEST
    assert node.rests() == []


def test_containerd_killed_during_publishes(node: PodNode) -> None:
    layers = [layer(f"killed {number}", size=200_000) for number in range(6)]
    with ThreadPoolExecutor(1) as pool:
        for number in range(5):
            image = node.registry.push(f"killed-{number}", "1", runnable_index(shared=layers, seed=f"killed {number}"))
            call = [Call("PullImage", node.kubelet.pull_request(image, GUEST_HANDLER))]
            pull = pool.submit(node.kubelet.at_once, call)
            with contextlib.suppress(TimeoutError):
                pull.result(0.05 * (number + 1))
            node.containerd.kill()
            pull.result()
            node.containerd.start()
            until(lambda: node.log("containerd is followed"), "the server has found containerd")
    for number in range(5):
        image = f"{node.registry.address}/killed-{number}:1"
        until(functools.partial(is_pulled, node, image), "the pull is repeated")
        assert node.kubelet.run(image, GUEST_HANDLER).line == GUEST
    until(lambda: node.rests() == [], "nothing is left")


def is_pulled(node: PodNode, image: str) -> bool:
    """Whether a pull for the guest succeeds; it may fail only since containerd was away."""
    (answer,) = node.kubelet.at_once([Call("PullImage", node.kubelet.pull_request(image, GUEST_HANDLER))])
    assert not isinstance(answer, CallError) or answer.code == "UNAVAILABLE", answer
    return not isinstance(answer, CallError)


@pytest.mark.parametrize("size", [None, 7], ids=["other bytes", "another size"])
def test_a_damaged_file_of_somebody_else_is_replaced(node: PodNode, size: int | None) -> None:
    built = runnable_index(layers=1, seed=f"theirs {size}")
    image = node.registry.push("theirs", str(size), built)
    digest = guest_layers(built)[0]
    placed = node.containerd.content / "blobs" / "sha256" / digest.encoded
    placed.write_bytes(node.registry.blob_path(digest.encoded).read_bytes()[:size])
    damage(placed)
    assert node.kubelet.run(image, GUEST_HANDLER).line == GUEST


def test_a_publisher_killed_while_it_replaces_a_file(node: PodNode) -> None:
    built = runnable_index(layers=1, seed="replaced")
    image = node.registry.push("replaced", "1", built)
    placed = node.containerd.content / "blobs" / "sha256" / guest_layers(built)[0].encoded
    node.stop()
    node.start(environment={"IMAGESTORE_FAILPOINT": "publish-replace:1"})
    placed.write_bytes(b"too short")
    with pytest.raises(CallError, match="UNAVAILABLE"):
        node.kubelet.pull(image, GUEST_HANDLER)
    assert node.wait_for_end() == -signal.SIGKILL
    node.start()
    until(lambda: node.rests() == [], "what was left is cleared")
    assert node.kubelet.run(image, GUEST_HANDLER).line == GUEST


def test_a_damaged_layer_of_the_store_is_fetched_again(node: PodNode) -> None:
    built = runnable_index(layers=1, seed="ours")
    image = node.registry.push("ours", "1", built)
    node.stop()
    node.imagestore("pull", image, "--runtime-handler", GUEST_HANDLER)
    digest = guest_layers(built)[0]
    blob = node.store / "content" / "blobs" / "sha256" / digest.encoded
    damage(blob)
    node.start()
    until(lambda: str(built.manifests[1].config.digest) in node.known(), "the image is published")
    assert node.kubelet.run(image, GUEST_HANDLER, policy="Never").line == GUEST
    assert Digest.of(blob.read_bytes()) == digest


def test_a_damaged_layer_that_cannot_be_fetched_runs_nowhere(node: PodNode) -> None:
    built = runnable_index(layers=1, seed="lost")
    image = node.registry.push("lost", "1", built)
    node.stop()
    node.imagestore("pull", image, "--runtime-handler", GUEST_HANDLER)
    digest = guest_layers(built)[0]
    damage(node.store / "content" / "blobs" / "sha256" / digest.encoded)
    there = node.registry.blob_path(digest.encoded)
    there.rename(there.with_name("away"))
    try:
        node.start()
        until(lambda: node.log("not published"), "the reason is logged")
        with pytest.raises(CallError, match=f"UNAVAILABLE.*{digest}"):
            node.kubelet.status(image, GUEST_HANDLER)
        until(lambda: node.rests() == [], "nothing is left")
        assert image not in node.containerd.images()
    finally:
        there.with_name("away").rename(there)
    assert node.kubelet.run(image, GUEST_HANDLER, policy="Always").line == GUEST


def test_a_lease_that_somebody_ends_is_made_again(node: PodNode) -> None:
    layers = [layer(f"lease {number}", size=200_000) for number in range(20)]
    image = node.registry.push("lease", "1", runnable_index(shared=layers, seed="lease"))
    ended: list[str] = []
    is_over = threading.Event()

    def end_one() -> None:
        with containerd_client(node.containerd) as client:
            while not is_over.is_set() and not ended:
                for lease in client.lease_ids():
                    if lease.startswith("imagestore-"):
                        client.delete_lease(lease)
                        ended.append(lease)

    thread = threading.Thread(target=end_one)
    thread.start()
    try:
        assert node.kubelet.run(image, GUEST_HANDLER).line == GUEST
    finally:
        is_over.set()
        thread.join()
    assert len(ended) == 1


def test_pulls_that_a_restart_interrupts_go_on(node: PodNode) -> None:
    layers = [layer(f"restart {number}", size=300_000) for number in range(20)]
    image = node.registry.push("restart", "1", runnable_index(shared=layers, seed="restart"))
    call = [Call("PullImage", node.kubelet.pull_request(image, GUEST_HANDLER))]
    with ThreadPoolExecutor(1) as pool:
        pull = pool.submit(node.kubelet.at_once, call)
        with contextlib.suppress(TimeoutError):
            pull.result(0.15)
        node.server.send(signal.SIGTERM)
        assert node.wait_for_end() == 0
        # Drained: what had begun was finished.
        (answer,) = pull.result()
    assert not isinstance(answer, CallError), answer
    assert node.rests() == []
    node.start()
    assert node.kubelet.run(image, GUEST_HANDLER, policy="Never").line == GUEST


def test_blobs_are_linked_under_collections(node: PodNode) -> None:
    """No layer is recorded without its file, and no image is lost, however often containerd collects."""
    with collecting(node.containerd) as collections:
        for number in range(10):
            layers = [layer(f"collected {number} {each}", size=2000) for each in range(8)]
            image = node.registry.push(f"collected-{number}", "1", runnable_index(shared=layers, seed=str(number)))
            node.kubelet.pull(image, GUEST_HANDLER)
        lines = {
            node.kubelet.run(f"{node.registry.address}/collected-{number}:1", GUEST_HANDLER, policy="Never").line
            for number in range(10)
        }
    assert (lines, collections["done"] > 100, node.rests()) == ({GUEST}, True, [])


def test_a_full_disk_of_containerd_is_said_and_left_as_it_was(node: PodNode) -> None:
    """Its root is another file system, too, so nothing can be linked into it."""
    both_run(node)
    node.kubelet.remove_pods()
    large = synthetic_layer("large", 48 * MIB)
    image = node.registry.push("large", "1", runnable_index(shared=[large], seed="large"))
    root = node.containerd.folder / "root"
    node.containerd.wipe()
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(root)], check=True)
    try:
        node.containerd.start()
        until(lambda: len(node.known()) == 3, "what fits is published")
        with pytest.raises(CallError, match=r"UNAVAILABLE.*no space left"):
            node.kubelet.pull(image, GUEST_HANDLER)
        until(lambda: node.rests() == [], "nothing is left of it")
        assert shutil.disk_usage(root).used < 10 * MIB
        node.kubelet.remove(image, GUEST_HANDLER)
        both_run(node, policy="Never")
    finally:
        node.kubelet.remove_pods()
        node.containerd.stop()
        subprocess.run(["umount", str(root)], check=True)
        node.containerd.start()
    assert node.log("containerd connected")[-1]["way"] == "own file"
    until(lambda: node.log("containerd connected")[-1]["way"] == "linked", "it is the usual folder again")
    until(lambda: len(node.known()) == 3, "everything is published")
    both_run(node, policy="Never")
