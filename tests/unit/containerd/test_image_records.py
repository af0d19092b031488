"""Whole images that clients make in the store's own namespace are records; any other stays its client's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from imagestore import Digest, ImageStore, platforms
from imagestore import config as configuration
from imagestore.oci.media_types import OCI_INDEX
from imagestore.protos.containerd import images_pb2 as wire
from imagestore.protos.google.protobuf.timestamp_pb2 import Timestamp
from imagestore.testing import Image, build_image, build_index, layer
from imagestore.testing.builders.images import Document
from tests.support.containerd_client import Client, refused, target
from tests.support.rpc_server import containerd_face
from tests.support.whole_images import (
    HOST,
    NAME,
    TWO_HANDLERS,
    bring,
    client_target,
    make,
    make_of,
    move,
)

EXISTS, PRECONDITION = grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION
INVALID = grpc.StatusCode.INVALID_ARGUMENT
PINNED = "io.cri-containerd.pinned"


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
    assert store.metadata.named_images.find("k8s.io") == []
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
    assert store.metadata.images.find() == []
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
    assert store.metadata.images.find() == []


@pytest.mark.parametrize("missing", ["layer", "config", "manifest"])
def test_what_is_not_whole_becomes_a_record_when_it_is(home: Client, store: ImageStore, missing: str) -> None:
    image = build_image(layers=[layer("one")])
    (manifest,) = image.manifests
    digest = {"layer": manifest.layers[0], "config": manifest.config, "manifest": manifest.descriptor}[missing].digest
    bring(home, image, without=digest)
    made = make(home, image, labels={"a": "1"})
    assert store.metadata.images.find() == []
    bring(home, image)
    changed = move(home, image)
    (record,) = store.metadata.images.find()
    assert record.labels["a"] == "1"
    assert changed.created_at == made.created_at
    assert store.metadata.named_images.find("k8s.io") == []


def test_content_of_another_size_than_promised_makes_no_record(home: Client, store: ImageStore) -> None:
    image = build_image()
    bring(home, image)
    given = image.target
    home.create_image(NAME, str(given.digest), size=given.size + 1, media_type=given.media_type)
    assert store.metadata.images.find() == []
    home.create_image("docker.io/library/b:1", str(given.digest), size=given.size, media_type="text/plain")
    assert store.metadata.images.find() == []


def test_a_layer_of_another_size_than_its_manifest_promises_makes_no_record(home: Client, store: ImageStore) -> None:
    one = layer("one")
    promise = {"mediaType": one.media_type_in("oci"), "digest": str(one.digest), "size": one.body.size + 1}
    image = build_image(layers=[one], members={"layers": [promise]})
    bring(home, image)
    make(home, image)
    assert (home.image_names(), store.metadata.images.find()) == ([NAME], [])


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
    config.write_text(TWO_HANDLERS)
    store = ImageStore(tmp_path / "store", host=HOST, config=configuration.load(config, host=HOST))
    first, second = (build_index(["linux/arm64", "linux/amd64"], seed=seed) for seed in "12")
    with containerd_face(store, tmp_path / "s") as channel:
        home = Client(channel, "k8s.io")
        bring(home, first)
        make(home, first)
        store.metadata.images.put(replace(store.get(NAME).record, handler="arm"), {})
        bring(home, second)
        with refused(PRECONDITION, "belongs to runtime handler 'arm'"):
            move(home, second, f"{NAME}@arm")
        move(home, second)
        assert {each.handler: each.target.digest for each in store.metadata.images.find()} == {
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
    for paths in ([], ["labels"], ["target"]):
        given = wire.Image(name=NAME, target=home.image(NAME).target, labels={"a": "1"})
        assert home.update_image(given, *paths).labels[PINNED] == "pinned", (
            "who replaces all labels didn't mean the pin"
        )
    home.update_image(wire.Image(name=NAME, labels={PINNED: ""}), f"labels.{PINNED}")
    assert not store.get(NAME).record.is_pinned
    assert PINNED not in home.image(NAME).labels


@pytest.mark.parametrize("seconds", [0, 5])
def test_a_reproducible_builds_time_is_the_records(home: Client, store: ImageStore, seconds: int) -> None:
    image = build_image()
    bring(home, image)
    epoch = Timestamp(seconds=seconds)
    request = wire.CreateImageRequest(image=wire.Image(name=NAME, target=target(str(image.target.digest))))
    request.image.target.size, request.image.target.media_type = image.target.size, image.target.media_type
    request.source_date_epoch.CopyFrom(epoch)
    assert home.images.Create(request, metadata=home.headers).image.created_at == epoch
    assert store.get(NAME).record.created_at == seconds


@pytest.mark.parametrize("label", ["", "long"])
def test_labels_that_no_image_may_have_no_record_has_either(home: Client, store: ImageStore, label: str) -> None:
    first, second = build_image(seed="1"), build_image(seed="2")
    bring(home, first)
    bring(home, second)
    labels = {label: "x" * 5000}
    with refused(INVALID, "label"):
        make(home, first, labels=labels)
    assert (home.image_names(), store.metadata.images.find()) == ([], [])
    make(home, first)
    moved = target(str(second.target.digest), size=second.target.size, media_type=second.target.media_type)
    with refused(INVALID, "label"):
        home.update_image(wire.Image(name=NAME, target=moved, labels=labels))
    assert store.get(NAME).record.target.digest == first.target.digest


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_tag_keeps_what_other_handlers_have_of_its_index(
    tmp_path: Path, home: Client, store: ImageStore, is_moved: bool
) -> None:
    image, before = build_index(["linux/arm64", "linux/amd64"]), build_image(seed="before")
    bring(home, image)
    bring(home, before)
    make(home, image)
    arm, own = image.manifests
    record = store.get(NAME).record
    other = replace(record, handler="arm", manifest=arm.descriptor, roots=(image.target.digest, arm.descriptor.digest))
    store.metadata.images.put(other, {arm.descriptor.digest: [each.digest for each in (arm.config, *arm.layers)]})
    if is_moved:
        make(home, before, "docker.io/library/tag:1")
        move(home, image, "docker.io/library/tag:1")
    else:
        make(home, image, "docker.io/library/tag:1")
    tag = store.get("docker.io/library/tag:1").record
    assert (tag.manifest.digest, tag.handler) == (own.descriptor.digest, "runc")
    store.metadata.images.remove([(NAME, "runc"), (NAME, "arm")])
    store.collect_garbage()
    kept = [each.digest for each in (arm.descriptor, arm.config, *arm.layers, own.descriptor, own.config, *own.layers)]
    assert all(store.content.exists(digest) for digest in kept)
    assert tag.content_size == sum(store.content.info(each).size for each in {*kept, image.target.digest})


def test_what_another_handler_has_lost_is_not_held(home: Client, store: ImageStore) -> None:
    image = build_index(["linux/arm64", "linux/amd64"])
    bring(home, image)
    make(home, image)
    arm, own = image.manifests
    roots = (image.target.digest, arm.descriptor.digest)
    other = replace(store.get(NAME).record, handler="arm", manifest=arm.descriptor, roots=roots)
    store.metadata.images.put(other, {arm.descriptor.digest: [each.digest for each in (arm.config, *arm.layers)]})
    store.content.delete(arm.layers[0].digest)
    make(home, image, "docker.io/library/tag:1")
    assert store.get("docker.io/library/tag:1").record.roots == (image.target.digest, own.descriptor.digest)


def test_what_an_index_lists_twice_is_held_once(home: Client, store: ImageStore) -> None:
    image = build_index(["linux/arm64", "linux/arm64", "linux/amd64"])
    bring(home, image)
    make(home, image)
    arm, same, _ = image.manifests
    assert arm == same
    roots = (image.target.digest, arm.descriptor.digest)
    other = replace(store.get(NAME).record, handler="arm", manifest=arm.descriptor, roots=roots)
    store.metadata.images.put(other, {arm.descriptor.digest: [each.digest for each in (arm.config, *arm.layers)]})
    make(home, image, "docker.io/library/tag:1")
    held = store.get("docker.io/library/tag:1").record.roots
    assert len(held) == len(set(held)) == 3


@pytest.mark.parametrize("name", ["docker.io/library/one:1", "docker.io/library/tag:1"])
def test_a_record_holds_nothing_that_is_not_below_its_target(home: Client, store: ImageStore, name: str) -> None:
    image = build_index(["linux/arm64", "linux/amd64"])
    bring(home, image)
    make(home, image)
    own = image.manifests[1].descriptor
    if name.endswith("one:1"):
        home.create_image(name, str(own.digest), size=own.size, media_type=own.media_type)
        # An index of its manifest is above it, and another name's.
        make(home, image, "docker.io/library/third:1")
    else:
        outer = index_of(image)
        home.ingest(outer.data, ref="outer")
        make_of(home, outer, NAME + "1")
        make_of(home, outer, name)
        home.create_image("docker.io/library/inner:1", str(image.target.digest), size=image.target.size)
    assert store.get(name).record.manifest.digest == own.digest
    assert store.check().faults == ()
    home.delete_image(name)
    home.delete_image(NAME)
    assert store.check().faults == ()


@pytest.mark.parametrize("damage", ["gone", "another byte", "none"])
def test_another_handlers_damaged_index_keeps_no_image_from_being_a_record(
    home: Client, store: ImageStore, damage: str
) -> None:
    inner, whole = build_index(["linux/arm64"]), build_image()
    bring(home, inner)
    bring(home, whole)
    own = whole.target
    platform = {"os": HOST.os, "architecture": HOST.architecture}
    entries: list[dict[str, object]] = [
        {"mediaType": own.media_type, "digest": str(own.digest), "size": own.size, "platform": platform}
    ]
    entries.append({"mediaType": OCI_INDEX, "digest": str(inner.target.digest), "size": inner.target.size})
    outer = Document.render(OCI_INDEX, {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})
    home.ingest(outer.data, ref="outer")
    make_of(home, outer, NAME)
    (arm,) = inner.manifests
    roots = (Digest.of(outer.data), inner.target.digest, arm.descriptor.digest)
    other = replace(store.get(NAME).record, handler="arm", manifest=arm.descriptor, roots=roots)
    store.metadata.images.put(other, {arm.descriptor.digest: [each.digest for each in (arm.config, *arm.layers)]})
    path = store.content.path(inner.target.digest)
    if damage == "gone":
        path.unlink()
    elif damage == "another byte":
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    make_of(home, outer, "docker.io/library/tag:1")
    held = store.get("docker.io/library/tag:1").record.roots
    assert set(held) == {Digest.of(outer.data), whole.target.digest} | ({*roots} if damage == "none" else set())


def index_of(image: Image) -> Document:
    """An index that lists another one's target, and nothing else."""
    entry = {"mediaType": image.target.media_type, "digest": str(image.target.digest), "size": image.target.size}
    return Document.render(OCI_INDEX, {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]})


@pytest.mark.parametrize("paths", [["target"], []], ids=["import", "fetch"])
def test_another_platform_of_the_handler_is_chosen_by_the_next_import(tmp_path: Path, paths: list[str]) -> None:
    image = build_index(["linux/arm64", "linux/amd64"])
    for platform in ("linux/amd64", "linux/arm64"):
        store = ImageStore(tmp_path / "store", host=platforms.parse(platform))
        with containerd_face(store, tmp_path / "s") as channel:
            home = Client(channel, "k8s.io")
            bring(home, image)
            if platform == "linux/amd64":
                make(home, image)
            home.update_image(wire.Image(name=NAME, target=client_target(image)), *paths)
            assert platforms.format_all(store.get(NAME).record.platform) == platform
