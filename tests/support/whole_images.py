"""Whole images that clients of containerd's services bring, name and move; and a verifier to judge them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from imagestore import CancelToken, Descriptor, Digest, ImageStore, platforms
from imagestore.errors import ImageStoreError
from imagestore.protos.containerd import images_pb2 as wire
from imagestore.protos.containerd.types_pb2 import Descriptor as WireDescriptor
from imagestore.testing import Image
from imagestore.testing.builders.images import Document
from tests.support.containerd_client import Client, target
from tests.support.rpc_server import containerd_face

NAME = "docker.io/library/app:1"
HOST = platforms.parse("linux/amd64")
#: A configuration with a handler for another architecture.
TWO_HANDLERS = (
    'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "runc"\n'
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.arm]\nruntime_type = "io.containerd.runc.v2"\n'
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.arm.guest_platform]\n'
    'OS = "linux"\nArchitecture = "arm64"\n'
)


def bring(client: Client, image: Image, *, without: Digest | None = None) -> None:
    """Write what isn't there of an image, as its client."""
    for digest, document in image.documents.items():
        if digest != without and not client.knows(str(digest)):
            client.ingest(document.data, ref=str(digest))
    for digest, body in image.blobs.items():
        if digest != without and not client.knows(str(digest)):
            client.ingest(b"".join(body.chunks()), ref=str(digest))


def make(client: Client, image: Image, name: str = NAME, labels: dict[str, str] | None = None) -> wire.Image:
    """Name an image's target."""
    given = image.target
    return client.create_image(name, str(given.digest), size=given.size, media_type=given.media_type, labels=labels)


def move(client: Client, image: Image, name: str = NAME) -> wire.Image:
    """Change an image's target, as an import does."""
    given = image.target
    moved = target(str(given.digest), size=given.size, media_type=given.media_type)
    return client.update_image(wire.Image(name=name, target=moved), "target")


def make_of(client: Client, document: Document, name: str) -> None:
    """Name a document."""
    digest = Digest.of(document.data)
    client.create_image(name, str(digest), size=len(document.data), media_type=document.media_type)


class Judge:
    """A verifier that fails for some targets."""

    def __init__(self, *refusals: ImageStoreError) -> None:
        self.refusals = list(refusals)
        self.at_once: list[int] = []
        self.seconds = 0.05
        self.meanwhile: list[Callable[[], None]] = []
        self._count = 0

    def verify(self, reference: str, target: Descriptor, *, cancel: CancelToken) -> None:
        """Do what is to happen meanwhile, and fail if there is a failure left."""
        self._count += 1
        self.at_once.append(self._count)
        time.sleep(self.seconds)
        self._count -= 1
        if self.meanwhile:
            self.meanwhile.pop()()
        if self.refusals:
            raise self.refusals.pop()


@contextlib.contextmanager
def guarded(folder: Path, judge: Judge) -> Iterator[tuple[Client, ImageStore]]:
    """A client of a store with a verifier."""
    store = ImageStore(folder / "guarded", host=HOST, verifier=judge)
    with containerd_face(store, folder / "g") as channel:
        yield Client(channel, "k8s.io"), store


def client_target(image: Image) -> WireDescriptor:
    """An image's target on the wire."""
    given = image.target
    return target(str(given.digest), size=given.size, media_type=given.media_type)
