"""Debian's containerd with the documented ``[proxy_plugins.imagestore]``: its CRI calls, through our own client."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagestore import ImageStore, platforms
from imagestore.cri import CriImageService, ImageSpec
from imagestore.errors import ImageStoreError
from imagestore.testing import Image, RegistryServer, build_image, layer
from tests.support.containerd_cri import containerd_cri
from tests.support.patience import until
from tests.support.server import Server, short_folder

pytestmark = pytest.mark.integration

PLATFORM = platforms.format_all(platforms.host.detect())
#: Layers that both images have, of some size, so that two pulls meet at them.
SHARED = [layer("base", size=2_000_000), layer("more", size=1_000_000)]
FIRST, SECOND = "registry.example/team/first:1", "registry.example/team/second:1"


def image(seed: str) -> Image:
    return build_image(PLATFORM, seed=seed, layers=[*SHARED, layer(f"layer of {seed}")])


IMAGES = {FIRST: image("first"), SECOND: image("second")}


@dataclass
class Node:
    """A server of ours, a containerd in front of it, and a registry.

    Attributes:
        registry: has the two images.
        root: the store.
        endpoint: containerd's.
        restart: ends the server in order and starts it again.
    """

    registry: RegistryServer
    root: Path
    endpoint: str
    restart: Callable[[], None]

    def name(self, reference: str) -> str:
        """An image's name as the registry serves it."""
        return self.registry.server.reference(reference)

    def run(self, *arguments: str) -> str:
        """Our command line at containerd's endpoint."""
        command = [sys.executable, "-m", "imagestore", "--endpoint", self.endpoint, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def blobs(self) -> set[str]:
        """What is in our store."""
        with ImageStore(self.root) as store:
            return {str(info.digest) for info in store.content.walk()}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    root = tmp_path / "store"
    with short_folder() as folder, RegistryServer(IMAGES) as registry, contextlib.ExitStack() as running:
        socket = folder / "content.sock"

        def start() -> None:
            server = Server(folder, root, "--proxy-content", f"unix://{socket}")
            running.callback(server.close)
            server.hear("READY=1")

        def restart() -> None:
            running.close()
            start()

        start()
        with containerd_cri(socket) as endpoint:
            yield Node(registry, root, endpoint, restart)


@pytest.fixture
def client(node: Node) -> Iterator[CriImageService]:
    with CriImageService(node.endpoint) as connected:
        yield connected


def needed(reference: str) -> set[str]:
    """Digests of all that an image consists of."""
    return {str(digest) for digest in (*IMAGES[reference].documents, *IMAGES[reference].blobs)}


def test_images_are_pulled_listed_and_removed(node: Node, client: CriImageService) -> None:
    name = node.name(FIRST)
    image_id = client.pull(ImageSpec(name))
    assert [(each.id, each.repo_tags) for each in client.list()] == [(image_id, (name,))]
    details = client.inspect(ImageSpec(name))
    assert details is not None
    assert json.loads(details.info["info"])["imageSpec"]["rootfs"]["diff_ids"]
    assert node.blobs() == needed(FIRST)
    assert client.pull(ImageSpec(name)) == image_id
    client.remove(ImageSpec(name))
    assert client.status(ImageSpec(name)) is None
    until(lambda: node.blobs() == set(), "containerd collects what the removed image had")


def test_two_pulls_at_once_meet_at_the_same_layers(node: Node, client: CriImageService) -> None:
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda each: client.pull(ImageSpec(node.name(each))), [FIRST, SECOND, FIRST, SECOND]))
    assert len(set(ids)) == 2
    assert node.blobs() == needed(FIRST) | needed(SECOND)
    client.remove(ImageSpec(ids[0]))
    until(lambda: node.blobs() == needed(SECOND), "what the other image has stays")


def test_what_the_store_has_is_not_pulled_again(node: Node, client: CriImageService) -> None:
    with ImageStore(node.root) as store:
        store.pull(node.name(FIRST))
    fetched = node.registry.ledger.count(kind="blob")
    client.pull(ImageSpec(node.name(FIRST)))
    assert node.registry.ledger.count(kind="blob") == fetched


def test_images_are_there_after_a_restart_of_the_server(node: Node, client: CriImageService) -> None:
    first = client.pull(ImageSpec(node.name(FIRST)))
    node.restart()

    def answers() -> bool:  # containerd connects again within some seconds
        with contextlib.suppress(ImageStoreError):
            return client.inspect(ImageSpec(first)) is not None
        return False

    until(answers, "containerd reads the image's config through the new server")
    assert [each.id for each in client.list()] == [first]
    second = client.pull(ImageSpec(node.name(SECOND)))
    assert {each.id for each in client.list()} == {first, second}
    client.remove(ImageSpec(first))
    until(lambda: node.blobs() == needed(SECOND), "containerd collects through the new server")
    with ImageStore(node.root) as store:
        assert store.check().faults == ()


def test_our_commands_reach_it(node: Node) -> None:
    name = node.name(FIRST)
    node.run("pull", name)
    assert [each["reference"] for each in json.loads(node.run("images", "-o", "json"))["images"]] == [name]
    assert json.loads(node.run("inspecti", name, "-o", "json"))["platform"]["text"] == PLATFORM
    node.run("rmi", name)
    assert json.loads(node.run("images", "-o", "json"))["images"] == []
