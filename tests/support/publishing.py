"""A node whose images are published into a fake containerd: a store, the registry it pulls from, and publishers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagestore import ImageStore, platforms
from imagestore.publish import Publisher
from imagestore.testing import build_index, layer
from tests.support.fake_containerd import FakeContainerd, fake_containerd
from tests.support.fake_containerd_state import Rules
from tests.support.node import Node, node

if TYPE_CHECKING:
    from imagestore.testing import Image

HOST = platforms.parse("linux/amd64")
#: The default handler, one of another platform, and one with a snapshotter of its own.
RUNC, ARM, KATA = "runc", "arm", "kata"
CONFIG = """
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.arm]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.arm.guest_platform]
OS = "linux"
Architecture = "arm64"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]
runtime_type = "io.containerd.kata.v2"
snapshotter = "native"
"""
SNAPSHOTTERS = {RUNC: "overlayfs", ARM: "overlayfs", KATA: "native"}
APP, OTHER = "registry.example/app:1", "registry.example/other:1"
BASE = layer("base of all")


def app(seed: str = "app") -> Image:
    """An image for two platforms, over a layer that all share."""
    return build_index(["linux/amd64", "linux/arm64"], seed=seed, shared=[BASE])


@dataclass
class PublishingNode:
    """What a test has."""

    node: Node
    fake: FakeContainerd

    @property
    def store(self) -> ImageStore:
        """The store."""
        return self.node.store

    def pull(self, reference: str = APP, handler: str = RUNC) -> str:
        """Pull; the image id."""
        return str(self.store.pull(reference, runtime_handler=handler).id)

    def publisher(self, **arguments: Any) -> Publisher:
        """A publisher of this store into the fake."""
        return Publisher(self.store, self.fake.address, **arguments)

    def reconcile(self, **arguments: Any) -> None:
        """One reconciliation by a publisher of its own; nothing may fail."""
        with self.publisher(**arguments) as publisher:
            report = publisher.reconcile()
        assert report.failed == {}

    def unmet(self) -> list[str]:
        """What containerd lacks of what the store has, has without need, or can't start; in words."""
        found = [f"lease {each}" for each in sorted(self.fake.leases())]
        for snapshotter in self.fake.rules.snapshotters:
            active = {name for name, each in self.fake.snapshots(snapshotter).items() if not each.is_committed}
            found += [f"active snapshot {each}" for each in sorted(active - self.fake.here.containers.keys())]
        for image in self.store.list():
            image_id = str(image.id)
            if not self.fake.runs(image_id, SNAPSHOTTERS[image.runtime_handler]):
                found.append(f"{image.reference} for {image.runtime_handler} doesn't run")
            wanted = [image_id, f"{image.reference.rpartition(':')[0]}@{image.manifest.digest}"]
            wanted += [image.reference] if image.runtime_handler == RUNC else []
            resolved = {name: self.fake.cri.resolve(name) for name in wanted}
            found += [f"{name} leads to {each or 'nothing'}" for name, each in resolved.items() if each != image_id]
        return found


@contextlib.contextmanager
def publishing_node(
    folder: Path,
    images: Mapping[str, Image] | None = None,
    rules: Rules | None = None,
    clock: Callable[[], float] = time.time,
    **arguments: Any,
) -> Iterator[PublishingNode]:
    """Open a store in ``folder`` and a fake containerd beside it; the registry has two images unless told otherwise.

    Args:
        folder: of the test.
        images: in the registry.
        rules: of the fake containerd.
        clock: of it; a publisher must have the same.
        arguments: further ones of the node.
    """
    served = {APP: app(), OTHER: app("other")} if images is None else images
    with (
        node(folder / "store", served, host=HOST, text=CONFIG, **arguments) as opened,
        fake_containerd(folder / "containerd", rules, clock) as fake,
    ):
        yield PublishingNode(opened, fake)
