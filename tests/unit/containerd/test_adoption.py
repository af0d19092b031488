"""Whole images that clients make in the store's own namespace are records; any other stays its client's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from imagestore import config as configuration
from imagestore import platforms
from imagestore.cancel import CancelToken
from imagestore.containerd._proto import images_pb2 as wire
from imagestore.descriptor import Descriptor
from imagestore.digest import Digest
from imagestore.errors import ImageDeniedError
from imagestore.store import ImageStore
from imagestore.testing import build_image, build_index, layer
from imagestore.testing.images.builders import Image
from imagestore.values import replace
from tests.support.containerd_client import Client, refused, target
from tests.support.rpc_server import containerd_face

EXISTS, PRECONDITION = grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION
NAME = "docker.io/library/app:1"
PINNED = "io.cri-containerd.pinned"
HOST = platforms.parse("linux/amd64")


@pytest.fixture
def home(client: Client) -> Client:
    """In the store's own namespace."""
    return client.within("k8s.io")


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


@pytest.mark.parametrize("image", [build_index(["linux/arm64", "linux/amd64"]), build_image()], ids=["index", "single"])
def test_a_whole_image_is_a_record_of_the_default_handler(home: Client, store: ImageStore, image: Image) -> None:
    bring(home, image)
    made = make(home, image, labels={"a": "1", "io.cri-containerd.image": "managed", "io.imagestore.platform": "x"})
    record = store.get(NAME).record
    own = next(each for each in image.manifests if each.platform == HOST)
    assert (record.handler, record.target.digest, record.manifest.digest) == (
        "runc",
        image.target.digest,
        own.descriptor.digest,
    )
    assert record.image_id == own.config.digest
    assert dict(record.labels) == {"a": "1"}
    assert made == home.image(NAME)
    assert made.labels["io.imagestore.platform"] == "linux/amd64"
    assert store.metadata.named_images("k8s.io") == []
    assert home.image_names() == [NAME]
    store.collect_garbage()
    assert [store.content.exists(each.digest) for each in (own.descriptor, own.config, *own.layers)].count(False) == 0
    with refused(EXISTS):
        make(home, image)
    home.delete_image(NAME)
    assert home.digests() == []


def test_only_what_the_handler_needs_must_be_there(home: Client, store: ImageStore) -> None:
    image = build_index(["linux/arm64", "linux/amd64"])
    foreign = next(each for each in image.manifests if each.platform != HOST)
    bring(home, image, without=foreign.descriptor.digest)
    make(home, image)
    assert store.get(NAME).record.handler == "runc"


@pytest.mark.parametrize(
    ("image", "name"),
    [
        (build_image(), "app"),
        (build_image(), "app:1"),
        (build_image(), "docker.io/library/app"),
        (build_image(), "import-2026-01-01@sha256:" + "a" * 64),
        (build_image(), "docker.io/library/app@sha256:" + "a" * 64),
        (build_image(), f"{NAME}@runc"),
        (build_image(platform="linux/arm64"), NAME),
        (build_index(["linux/arm64"]), NAME),
    ],
)
def test_another_name_or_platform_stays_its_clients(home: Client, store: ImageStore, image: Image, name: str) -> None:
    bring(home, image)
    make(home, image, name)
    assert store.metadata.find_images() == []
    assert home.image_names() == [name]
    store.collect_garbage()
    assert set(home.digests()) >= {str(image.target.digest)}


def test_its_digest_may_be_in_the_name(home: Client, store: ImageStore) -> None:
    image = build_image()
    bring(home, image)
    make(home, image, f"docker.io/library/app@{image.target.digest}")
    assert store.get(str(image.manifests[0].config.digest)).record.target.digest == image.target.digest


def test_other_namespaces_images_are_no_records(client: Client, store: ImageStore) -> None:
    image = build_image()
    bring(client, image)
    make(client, image)
    assert store.metadata.find_images() == []


@pytest.mark.parametrize("missing", ["layer", "config", "manifest"])
def test_what_is_not_whole_becomes_a_record_when_it_is(home: Client, store: ImageStore, missing: str) -> None:
    image = build_image(layers=[layer("one")])
    (manifest,) = image.manifests
    digest = {"layer": manifest.layers[0], "config": manifest.config, "manifest": manifest.descriptor}[missing].digest
    bring(home, image, without=digest)
    made = make(home, image, labels={"a": "1"})
    assert store.metadata.find_images() == []
    bring(home, image)
    changed = move(home, image)
    (record,) = store.metadata.find_images()
    assert record.labels["a"] == "1"
    assert changed.created_at == made.created_at
    assert store.metadata.named_images("k8s.io") == []


def test_content_of_another_size_than_promised_makes_no_record(home: Client, store: ImageStore) -> None:
    image = build_image()
    bring(home, image)
    given = image.target
    home.create_image(NAME, str(given.digest), size=given.size + 1, media_type=given.media_type)
    assert store.metadata.find_images() == []
    home.create_image("docker.io/library/b:1", str(given.digest), size=given.size, media_type="text/plain")
    assert store.metadata.find_images() == []


def test_a_record_moves_where_its_content_is_here(home: Client, store: ImageStore) -> None:
    first, second = build_image(seed="1"), build_image(seed="2")
    bring(home, first)
    make(home, first, labels={PINNED: "pinned"})
    home.update_image(wire.Image(name=NAME, labels={"team": "a"}), "labels.team")
    with refused(PRECONDITION, "can't be moved"):
        move(home, second)
    assert store.get(NAME).record.target.digest == first.target.digest
    bring(home, second)
    moved = move(home, second)
    record = store.get(NAME).record
    assert (record.target.digest, dict(record.labels), record.is_pinned) == (second.target.digest, {"team": "a"}, True)
    assert moved.labels["io.imagestore.image-id"] == str(record.image_id)
    store.collect_garbage()
    assert not store.content.exists(first.target.digest)


def test_what_a_pull_recorded_is_moved_too(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "runc"\n'
        '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
        '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.arm]\nruntime_type = "io.containerd.runc.v2"\n'
        '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.arm.guest_platform]\n'
        'OS = "linux"\nArchitecture = "arm64"\n'
    )
    store = ImageStore(tmp_path / "store", host=HOST, config=configuration.load(config, host=HOST))
    first, second = (build_index(["linux/arm64", "linux/amd64"], seed=seed) for seed in "12")
    with containerd_face(store, tmp_path / "s") as channel:
        home = Client(channel, "k8s.io")
        bring(home, first)
        make(home, first)
        store.metadata.put_image(replace(store.get(NAME).record, handler="arm"), {})
        bring(home, second)
        with refused(PRECONDITION, "belongs to runtime handler 'arm'"):
            move(home, second, f"{NAME}@arm")
        move(home, second)
        assert {each.handler: each.target.digest for each in store.metadata.find_images()} == {
            "runc": second.target.digest,
            "arm": first.target.digest,
        }


def test_a_pin_comes_and_goes_with_its_label(home: Client, store: ImageStore) -> None:
    image = build_image()
    bring(home, image)
    make(home, image)
    assert not store.get(NAME).record.is_pinned
    home.update_image(wire.Image(name=NAME, labels={PINNED: "pinned"}), f"labels.{PINNED}")
    assert store.get(NAME).record.is_pinned
    assert home.image(NAME).labels[PINNED] == "pinned"
    home.update_image(wire.Image(name=NAME, labels={PINNED: ""}), f"labels.{PINNED}")
    assert not store.get(NAME).record.is_pinned
    assert PINNED not in home.image(NAME).labels


def test_a_reproducible_builds_time_is_the_records(home: Client, store: ImageStore) -> None:
    image = build_image()
    bring(home, image)
    epoch = Timestamp(seconds=5)
    request = wire.CreateImageRequest(image=wire.Image(name=NAME, target=target(str(image.target.digest))))
    request.image.target.size, request.image.target.media_type = image.target.size, image.target.media_type
    request.source_date_epoch.CopyFrom(epoch)
    assert home.images.Create(request, metadata=home.headers).image.created_at == epoch
    assert store.get(NAME).record.created_at == 5


class Never:
    """A verifier that refuses."""

    def verify(self, reference: str, target: Descriptor, *, cancel: CancelToken) -> None:
        """No."""
        raise ImageDeniedError(reference, "never", f"not {target.digest}")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Client, ImageStore]]:
    """A client of a store whose verifier refuses everything."""
    store = ImageStore(tmp_path / "guarded", host=HOST, verifier=Never())
    with containerd_face(store, tmp_path / "g") as channel:
        yield Client(channel, "k8s.io"), store


def test_what_the_verifier_refuses_is_no_record(guarded: tuple[Client, ImageStore]) -> None:
    client, store = guarded
    image = build_image()
    bring(client, image)
    make(client, image)
    assert store.metadata.find_images() == []
    assert client.image_names() == [NAME]
