"""Images by name, the handlers' records among them."""

from __future__ import annotations

import time

import grpc
import pytest

from imagestore import Descriptor, Digest, EvictionPolicy, ImageStore, Platform
from imagestore.errors import InvalidInputError
from imagestore.metadata import ImageRecord
from imagestore.protos.containerd import images_pb2 as wire
from imagestore.protos.containerd.types_pb2 import Descriptor as WireDescriptor
from imagestore.protos.google.protobuf.timestamp_pb2 import Timestamp
from tests.support.containerd_client import COMMIT, Client, digest_of, message, refused, target

NOT_FOUND, INVALID = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
EXISTS, PRECONDITION = grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION
REFERENCE = "docker.io/library/x:1"
A, B = digest_of(b"a"), digest_of(b"b")


def put_record(store: ImageStore, handler: str, *, reference: str = REFERENCE, blob: bytes = b"") -> ImageRecord:
    """A record whose index and manifest are there."""
    index, manifest, config = (Digest.of(part + blob) for part in (b"index", handler.encode(), b"config"))
    for content in (b"index" + blob, handler.encode() + blob, b"config" + blob):
        digest = Digest.of(content)
        if not store.content.exists(digest):
            with store.content.try_writer(str(digest), algorithm="sha256", total=0) as writer:
                writer.write(content)
                writer.commit(digest, len(content))
    return store.metadata.images.put(
        ImageRecord(
            reference=reference,
            handler=handler,
            target=Descriptor("application/vnd.oci.image.index.v1+json", index, 5),
            manifest=Descriptor("application/vnd.oci.image.manifest.v1+json", manifest, 4),
            image_id=config,
            platform=Platform("linux", "amd64"),
            wanted="linux/amd64",
            roots=(manifest, index),
            content_size=9,
        ),
        {manifest: [config]},
    )


def test_an_image_may_name_what_is_not_there(client: Client) -> None:
    made = client.create_image("any text, spaces too", A, size=7, labels={"x": "1", "empty": ""})
    assert client.image("any text, spaces too") == made
    assert (made.target.digest, made.target.size, dict(made.labels)) == (A, 7, {"x": "1"})
    assert made.created_at.seconds > 0
    assert made.created_at == made.updated_at
    assert client.within("other").image_names() == []
    with refused(EXISTS):
        client.create_image("any text, spaces too", B)
    with refused(INVALID, "at most 32768 bytes"):
        client.create_image("ä" * 20_000, A)
    with refused(NOT_FOUND):
        client.image("other")
    with refused(NOT_FOUND, "..."):
        client.image("x" * 20_000)


@pytest.mark.parametrize(
    ("name", "digest", "size", "media_type"),
    [
        ("", A, 1, "m"),
        ("n", "nonsense", 1, "m"),
        ("n", A, 0, "m"),
        ("n", A, -1, "m"),
        ("n", A, 1, ""),
        ("n", "", 1, "m"),
        ("n", "md5:" + "0" * 32, 1, "m"),
        ("n", "blake3:" + "0" * 64, 1, "m"),
        ("n", "foo:bar", 1, "m"),
    ],
)
def test_an_image_needs_name_digest_size_and_media_type(
    client: Client, name: str, digest: str, size: int, media_type: str
) -> None:
    with refused(INVALID):
        client.create_image(name, digest, size=size, media_type=media_type)
    client.create_image("there", A)
    changed = wire.Image(name=name and "there", target=target(digest, size=size, media_type=media_type))
    with refused(INVALID):
        client.update_image(changed, "target")
    assert client.image_names() == ["there"]


def test_times_come_from_the_server_unless_the_build_says_when(client: Client) -> None:
    image = wire.Image(name="n", target=target(A))
    image.created_at.seconds = 5
    request = wire.CreateImageRequest(image=image)
    request.source_date_epoch.seconds = 77
    made = client.images.Create(request, metadata=client.headers).image
    assert (made.created_at.seconds, made.updated_at.seconds) == (77, 77)


def test_updates_change_what_the_mask_names(client: Client) -> None:
    made = client.create_image("n", A, labels={"a": "1", "b": "2"})
    made.target.annotations["k"] = "v"
    changed = wire.Image(name="n", labels={"c": "3"}, target=WireDescriptor(annotations={"k": "v", "l": "w"}))
    assert dict(client.update_image(changed, "labels.c", "labels.b").labels) == {"a": "1", "c": "3"}
    assert dict(client.update_image(changed, "annotations.k").target.annotations) == {"k": "v"}
    assert dict(client.update_image(changed, "annotations").target.annotations) == {"k": "v", "l": "w"}
    moved = client.update_image(wire.Image(name="n", target=target(B)), "target")
    assert (moved.target.digest, dict(moved.target.annotations), dict(moved.labels)) == (B, {}, {"a": "1", "c": "3"})
    whole = client.update_image(wire.Image(name="n", target=target(A)))
    assert (whole.target.digest, dict(whole.labels), whole.created_at) == (A, {}, made.created_at)
    assert whole.updated_at.ToNanoseconds() > made.updated_at.ToNanoseconds()
    for path in ("name", "created_at", "target.digest", "labels."):
        with refused(INVALID, "field mask"):
            client.update_image(changed, path)
    with refused(INVALID):
        client.update_image(changed)
    with refused(NOT_FOUND):
        client.update_image(wire.Image(name="m", target=target(A)))


def test_lists_are_ordered_and_filtered(client: Client) -> None:
    for name, digest in (("b", A), ("a", B), ("c", A)):
        client.create_image(name, digest, labels={"n": name})
    assert client.image_names() == ["a", "b", "c"]
    assert client.image_names("name==a", f"target.digest=={A},labels.n==c") == ["a", "c"]
    assert client.image_names("name~=^[ab]$") == ["a", "b"]
    assert client.image_names("target.mediatype~=index", "annotations.x") == ["a", "b", "c"]


def test_an_image_keeps_its_content_until_it_goes(client: Client, store: ImageStore) -> None:
    child = client.ingest(b"child")
    parent = client.write(message(COMMIT, "r", data=b"parent", labels={"containerd.io/gc.ref.content.m.0": child}))[
        -1
    ].digest
    client.create_image("n", parent, size=6)
    store.collect_garbage()
    assert client.digests() == sorted([parent, child])
    with refused(NOT_FOUND, "by now"):
        client.delete_image("n", digest=A)
    client.delete_image("n", digest=parent)
    assert client.digests() == [], "sync answers after the collection"
    assert list(store.content.walk()) == []
    with refused(NOT_FOUND):
        client.delete_image("n")


@pytest.mark.parametrize("namespace", ["default", "k8s.io"])
def test_an_image_keeps_what_its_labels_name(client: Client, store: ImageStore, namespace: str) -> None:
    caller = client.within(namespace)
    target_digest, extra = caller.ingest(b"target"), caller.ingest(b"extra")
    caller.create_image("n", target_digest, size=6, labels={"containerd.io/gc.ref.content.extra": extra, "a": "1"})
    store.collect_garbage()
    assert caller.digests() == sorted([target_digest, extra])
    caller.update_image(wire.Image(name="n", labels={"a": "2"}), "labels.a")
    store.collect_garbage()
    assert caller.knows(extra)
    caller.update_image(wire.Image(name="n"), "labels.containerd.io/gc.ref.content.extra")
    store.collect_garbage()
    assert caller.digests() == [target_digest]


@pytest.mark.parametrize("way", ["label", "delete", "delete all", "evict", "service"])
def test_a_record_keeps_what_its_labels_name(home: Client, store: ImageStore, way: str) -> None:
    put_record(store, "kata")
    put_record(store, "kata", reference="docker.io/library/y:1", blob=b"y")
    extra = put_record(store, "runc", reference="docker.io/library/z:1", blob=b"z")
    key, name = "containerd.io/gc.ref.content.extra", f"{REFERENCE}@kata"
    home.update_image(wire.Image(name=name, labels={key: str(extra.manifest.digest)}), f"labels.{key}")
    store.remove(extra.reference, collect=True)
    store.collect_garbage()
    assert [chain.holder.name for chain in store.why(extra.image_id)] == [REFERENCE]
    assert store.usage().images[0].blobs.keys() >= {extra.manifest.digest, extra.image_id}
    if way == "label":
        home.update_image(wire.Image(name=name), f"labels.{key}")
        store.collect_garbage()
    elif way == "delete":
        store.remove(REFERENCE, all_handlers=True, collect=True)
    elif way == "delete all":
        store.remove(REFERENCE, "docker.io/library/y:1", all_handlers=True, collect=True)
    elif way == "evict":
        store.evict(EvictionPolicy(keep_last=0))
    else:
        home.delete_image(name)
    assert not store.content.exists(extra.manifest.digest)
    assert not store.content.exists(extra.image_id)


def test_without_sync_the_content_goes_with_the_next_collection(client: Client, store: ImageStore) -> None:
    digest = client.ingest(b"x", labels={"containerd.io/gc.root": "x"})
    client.create_image("n", digest)
    client.label(digest, {})
    client.delete_image("n", is_sync=False)
    assert [str(each.digest) for each in store.content.walk()] == [str(digest)]
    store.collect_garbage()
    assert not client.knows(digest)


def test_an_expired_image_is_no_root_and_goes(client: Client, store: ImageStore) -> None:
    digest = client.ingest(b"x")
    client.create_image("n", digest, labels={"containerd.io/gc.expire": "2000-01-01T00:00:00Z"})
    client.create_image("m", A, labels={"containerd.io/gc.expire": "soon"})
    store.collect_garbage()
    assert client.image_names() == ["m"]
    assert client.digests() == []


def test_each_handlers_record_is_an_image_of_the_stores_namespace(home: Client, store: ImageStore) -> None:
    mine, theirs = put_record(store, "runc"), put_record(store, "kata")
    assert home.image_names() == [REFERENCE, f"{REFERENCE}@kata"]
    assert home.within("default").image_names() == []
    default, other = home.image(REFERENCE), home.image(f"{REFERENCE}@kata")
    assert default.target.digest == str(mine.target.digest), "what the reference resolved to"
    assert other.target.digest == str(theirs.manifest.digest), "what this handler runs"
    assert other.labels["io.imagestore.runtime-handler"] == "kata"
    assert dict(default.labels) == {
        "io.cri-containerd.image": "managed",
        "io.imagestore.runtime-handler": "runc",
        "io.imagestore.image-id": str(mine.image_id),
        "io.imagestore.manifest": str(mine.manifest.digest),
        "io.imagestore.platform": "linux/amd64",
    }
    assert home.image_names('labels."io.imagestore.runtime-handler"==kata') == [f"{REFERENCE}@kata"]
    assert home.knows(str(mine.manifest.digest))
    with refused(NOT_FOUND):
        home.image(f"{REFERENCE}@runc")
    with refused(NOT_FOUND):
        home.image(f"{REFERENCE}@")


def test_a_reference_by_digest_has_handlers_too(home: Client, store: ImageStore) -> None:
    reference = f"docker.io/library/x@{A}"
    put_record(store, "runc", reference=reference)
    put_record(store, "kata", reference=reference)
    assert home.image_names() == [reference, f"{reference}@kata"]
    assert home.image(f"{reference}@kata").labels["io.imagestore.runtime-handler"] == "kata"


def test_removing_a_handlers_image_removes_that_record_alone(home: Client, store: ImageStore) -> None:
    put_record(store, "runc")
    record = put_record(store, "kata")
    home.delete_image(f"{REFERENCE}@kata")
    assert [each.handler for each in store.metadata.images.find()] == ["runc"]
    assert not store.content.exists(record.manifest.digest)
    home.delete_image(REFERENCE)
    assert store.metadata.images.find() == []
    assert list(store.content.walk()) == []


def test_a_record_takes_labels_but_not_the_stores_own(home: Client, store: ImageStore) -> None:
    put_record(store, "runc")
    store.metadata.images.pin([(REFERENCE, "runc")], is_pinned=True)
    given = wire.Image(name=REFERENCE, labels={"a": "1"})
    changed = home.update_image(given, "labels.a")
    assert changed.labels["a"] == "1"
    assert changed.labels["io.cri-containerd.pinned"] == "pinned"
    (record,) = store.metadata.images.find()
    assert (dict(record.labels), record.is_pinned) == ({"a": "1"}, True)
    assert dict(home.update_image(changed).labels) == dict(changed.labels), "what was read may be written back"
    with refused(INVALID, "the store's own"):
        home.update_image(wire.Image(name=REFERENCE, labels={"io.imagestore.runtime-handler": "kata"}), "labels")
    with refused(PRECONDITION, "can't be moved: "):
        home.update_image(wire.Image(name=REFERENCE, target=target(B)), "target")
    (after,) = store.metadata.images.find()
    assert (after.target, dict(after.labels), after.is_pinned) == (record.target, {"a": "1"}, True)


def test_a_clients_image_and_a_record_do_not_share_a_name(home: Client, store: ImageStore) -> None:
    home.create_image(REFERENCE, A)
    put_record(store, "runc")
    assert home.image_names() == [REFERENCE]
    assert home.image(REFERENCE).labels["io.imagestore.runtime-handler"] == "runc"
    with refused(EXISTS):
        home.create_image(REFERENCE, A)
    home.delete_image(REFERENCE)
    assert home.image_names() == []


def test_a_tag_of_a_record_is_a_clients_image_that_keeps_the_content(home: Client, store: ImageStore) -> None:
    record = put_record(store, "runc")
    found = home.image(REFERENCE)
    home.create_image("mine", found.target.digest, size=5, labels={**found.labels, "a": "1"})
    assert dict(home.image("mine").labels) == {"a": "1", "io.cri-containerd.image": "managed"}
    before = home.digests()
    home.delete_image(REFERENCE)
    assert home.digests() == before
    assert str(record.image_id) in before
    home.create_image("mine too", found.target.digest, size=5)
    home.update_image(wire.Image(name="mine", labels={"b": "2"}), "labels")
    home.delete_image("mine too")
    assert home.digests() == before
    assert home.image_names() == ["mine"]
    home.delete_image("mine")
    assert home.digests() == []


def dated(name: str, epoch: Timestamp) -> wire.CreateImageRequest:
    return wire.CreateImageRequest(image=wire.Image(name=name, target=target(A)), source_date_epoch=epoch)


def test_a_reproducible_builds_time_is_taken_also_the_first_one_there_is(client: Client) -> None:
    for seconds in (0, 1_700_000_000, -62_135_596_800, 253_402_300_799):
        name, epoch = f"of {seconds}", Timestamp(seconds=seconds)
        made = client.images.Create(dated(name, epoch), metadata=client.headers).image
        assert made.created_at == made.updated_at == epoch
        update = wire.UpdateImageRequest(image=made, source_date_epoch=Timestamp(seconds=5))
        changed = client.images.Update(update, metadata=client.headers).image
        assert (changed.created_at, changed.updated_at.seconds) == (epoch, 5)


@pytest.mark.parametrize(
    ("seconds", "nanos"), [(2**63 - 1, 0), (-(2**62), 0), (253_402_300_800, 0), (5, -1), (5, 10**9)]
)
def test_what_is_no_time_is_refused(client: Client, seconds: int, nanos: int) -> None:
    with refused(INVALID, "expected one of the years 1 to 9999"):
        client.images.Create(dated("n", Timestamp(seconds=seconds, nanos=nanos)), metadata=client.headers)
    assert client.image_names() == []


def test_a_name_costs_no_look_for_each_at_sign_in_it(home: Client, store: ImageStore) -> None:
    put_record(store, "odd@handler@", blob=b"odd")
    assert home.image(f"{REFERENCE}@odd@handler@").labels["io.imagestore.runtime-handler"] == "odd@handler@"
    began = time.process_time()
    for name in ("@" * 3_000_000, "x@" * 1_500_000):
        with refused(NOT_FOUND, "..."):
            home.image(name)
    assert time.process_time() - began < 20


def test_what_a_record_hides_goes_with_it_though_a_later_name_is_refused(home: Client, store: ImageStore) -> None:
    home.create_image(REFERENCE, str(Digest.of(b"index")))
    put_record(store, "runc")
    with pytest.raises(InvalidInputError):
        store.remove(REFERENCE, "", collect=True)
    assert home.image_names() == []


@pytest.mark.parametrize("way", ["delete", "remove", "evict", "service"])
def test_what_a_record_hides_goes_with_it(home: Client, store: ImageStore, way: str) -> None:
    index = Digest.of(b"index")
    home.create_image(REFERENCE, str(index))
    home.create_image(f"{REFERENCE}@kata", str(index))
    home.create_image("mine", str(A))
    put_record(store, "runc")
    put_record(store, "kata")
    if way == "delete":
        store.remove(REFERENCE, all_handlers=True, collect=True)
    elif way == "remove":
        store.remove(REFERENCE, runtime_handler="runc")
        assert home.image(f"{REFERENCE}@kata").labels
        store.remove(REFERENCE, runtime_handler="kata")
    elif way == "evict":
        store.evict(EvictionPolicy(keep_last=0))
    else:
        home.delete_image(REFERENCE)
        home.delete_image(f"{REFERENCE}@kata")
    assert home.image_names() == ["mine"]
    if way in ("delete", "evict"):
        assert not store.content.exists(index)
    store.collect_garbage()
    assert not store.content.exists(index)
