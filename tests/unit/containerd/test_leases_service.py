"""Leases keep what they list, in their namespace, until they end."""

from __future__ import annotations

import time

import grpc
import pytest

from imagestore import Digest, ImageStore
from tests.support.containerd_client import COMMIT, STAT, WRITE, Client, digest_of, message, refused
from tests.support.embedded import database_of

NOT_FOUND, UNIMPLEMENTED = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED
HELLO = digest_of(b"hello")
PAST = "2000-01-01T00:00:00Z"


def test_ids_are_unique_in_a_namespace_and_made_when_missing(client: Client, store: ImageStore) -> None:
    assert client.create_lease("mine") == "mine"
    made = client.create_lease()
    assert made not in ("", client.create_lease())
    assert client.within("other").create_lease("mine") == "mine"
    with refused(grpc.StatusCode.ALREADY_EXISTS):
        client.create_lease("mine")
    assert len(client.lease_ids()) == 3
    assert client.within("other").lease_ids() == ["mine"]
    assert client.within("k8s.io").lease_ids() == []
    assert client.lease_ids("id==mine") == ["mine"]
    assert {lease.id for lease in store.metadata.leases.find()} >= {"default/mine", "other/mine"}


def test_the_stores_own_leases_are_those_of_its_namespace(client: Client, store: ImageStore) -> None:
    home = client.within("k8s.io")
    store.metadata.leases.create("pull-1", lifetime_seconds=60, labels={"a": "b"})
    assert home.lease_ids("labels.a==b") == ["pull-1"]
    home.create_lease("theirs", flat="x")
    assert {(lease.id, lease.is_flat) for lease in store.metadata.leases.find()} == {
        ("pull-1", False),
        ("theirs", True),
    }
    home.delete_lease("pull-1")
    assert home.lease_ids() == ["theirs"]


@pytest.mark.parametrize("namespace", ["default", "k8s.io"])
def test_a_lease_keeps_content_until_it_is_deleted(client: Client, store: ImageStore, namespace: str) -> None:
    mine = client.within(namespace)
    lease = mine.create_lease("mine")
    mine.leasing("mine").ingest(b"hello")
    assert mine.resources(lease) == [("content", HELLO)]
    store.collect_garbage()
    assert mine.digests() == [HELLO]
    mine.delete_lease("mine")
    assert mine.digests() == []
    assert list(store.content.walk()) == []
    with refused(NOT_FOUND):
        mine.delete_lease("mine")


def test_a_lease_follows_labels_and_a_flat_one_does_not(client: Client, store: ImageStore) -> None:
    child = client.ingest(b"child")
    parent = client.ingest(b"parent", labels={"containerd.io/gc.ref.content.config": child})
    client.create_lease("deep")
    client.create_lease("flat", flat="x")
    for lease in ("deep", "flat"):
        client.add_resource(lease, parent)
    store.collect_garbage()
    assert client.digests() == sorted([child, parent])
    client.delete_lease("deep")
    assert client.digests() == [parent]
    client.delete_resource("flat", parent)
    store.collect_garbage()
    assert client.digests() == []


def test_an_expired_lease_keeps_nothing_and_goes(client: Client, store: ImageStore) -> None:
    for lease, end in (("past", PAST), ("odd", "soon")):
        client.create_lease(lease, expire=end)
        client.leasing(lease).ingest(lease.encode(), ref=lease)
    store.collect_garbage()
    assert client.lease_ids() == ["odd"], "an expiry that can't be read is none"
    assert client.digests() == [digest_of(b"odd")]


def test_content_that_is_known_already_is_leased_all_the_same(client: Client, store: ImageStore) -> None:
    client.ingest(b"hello")
    client.create_lease("mine")
    leased = client.leasing("mine")
    with refused(grpc.StatusCode.ALREADY_EXISTS):
        leased.write(message(STAT, "r", expected=HELLO))
    store.collect_garbage()
    assert client.resources("mine") == [("content", HELLO)]
    assert client.digests() == [HELLO]


def test_writes_under_a_missing_lease_are_refused(client: Client) -> None:
    with refused(NOT_FOUND, "lease"):
        client.leasing("nobody").ingest(b"hello")
    client.within("other").create_lease("mine")
    with refused(NOT_FOUND, "lease"):
        client.leasing("mine").ingest(b"hello")
    assert client.statuses() == []


def test_an_unfinished_write_lives_and_dies_with_its_lease(client: Client, store: ImageStore) -> None:
    client.create_lease("mine")
    client.leasing("mine").write(message(WRITE, "r", data=b"hel"))
    assert client.resources("mine") == [("ingests", "r")]
    store.collect_garbage()
    assert client.statuses() == ["r"]
    client.delete_lease("mine")
    assert client.statuses() == []
    client.write(message(WRITE, "unleased", data=b"hel"))
    store.collect_garbage()
    assert client.statuses() == ["unleased"]


def test_a_leased_write_is_kept_however_long_nobody_touches_it(client: Client, store: ImageStore) -> None:
    client.create_lease("mine")
    client.write(message(WRITE, "leased", data=b"hel"))
    client.write(message(WRITE, "alone", data=b"hel"))
    client.add_resource("mine", "leased", "ingests")
    store._parts.clock = database_of(store).database.clock = lambda: time.time() + 48 * 3600
    store.collect_garbage()
    assert client.statuses() == ["leased"]


def test_leased_writes_are_listed_taken_off_and_missing_ones_named(client: Client) -> None:
    client.create_lease("mine")
    client.write(message(WRITE, "r", data=b"hel"))
    client.add_resource("mine", "r", "ingests")
    client.add_resource("mine", HELLO)
    assert client.resources("mine") == [("content", HELLO), ("ingests", "r")]
    client.delete_resource("mine", "r", "ingests")
    client.delete_resource("mine", "nothing", "ingests")
    client.delete_resource("mine", digest_of(b"nothing"))
    assert client.resources("mine") == [("content", HELLO)]
    with refused(NOT_FOUND):
        client.add_resource("mine", "nothing", "ingests")
    with refused(NOT_FOUND):
        client.add_resource("nobody", HELLO)
    with refused(NOT_FOUND):
        client.resources("nobody")
    with refused(grpc.StatusCode.INVALID_ARGUMENT):
        client.add_resource("mine", "nonsense")
    with refused(UNIMPLEMENTED, "snapshots/overlayfs"):
        client.add_resource("mine", "key", "snapshots/overlayfs")
    for name, kind in (("r", "ingests/x"), ("n", "images/x"), ("", "images"), ("n" * 32_769, "images")):
        with refused(grpc.StatusCode.INVALID_ARGUMENT):
            client.add_resource("mine", name, kind)


@pytest.mark.parametrize("namespace", ["default", "k8s.io"])
def test_a_lease_takes_names_of_images_that_need_not_be_there(client: Client, namespace: str) -> None:
    mine = client.within(namespace)
    mine.create_lease("mine")
    for name in ("x.example/b:1", "x.example/a:1@kata", "any name", "x.example/b:1"):
        mine.add_resource("mine", name, "images")
    mine.add_resource("mine", HELLO)
    expected = [("images", name) for name in ("any name", "x.example/a:1@kata", "x.example/b:1")]
    assert mine.resources("mine") == [("content", HELLO), *expected]
    mine.delete_resource("mine", "any name", "images")
    mine.delete_resource("mine", "nothing", "images")
    assert mine.resources("mine") == [("content", HELLO), *expected[1:]]
    mine.delete_lease("mine")
    mine.create_lease("mine")
    assert mine.resources("mine") == []


@pytest.mark.parametrize("namespace", ["default", "k8s.io"])
def test_a_leased_image_outlives_its_expiry_with_its_content(client: Client, store: ImageStore, namespace: str) -> None:
    mine = client.within(namespace)
    child = mine.ingest(b"child", ref="child")
    parent = mine.ingest(b"parent", ref="parent", labels={"containerd.io/gc.ref.content.config": child})
    mine.create_lease("mine")
    mine.add_resource("mine", "n", "images")
    client.within("other").create_lease("theirs")
    client.within("other").add_resource("theirs", "unleased here", "images")
    for name in ("n", "unleased here"):
        mine.create_image(name, parent, labels={"containerd.io/gc.expire": PAST})
    store.collect_garbage()
    assert (mine.image_names(), mine.digests()) == (["n"], sorted([parent, child]))
    mine.delete_resource("mine", "n", "images")
    store.collect_garbage()
    assert (mine.image_names(), mine.digests()) == ([], [])


@pytest.mark.parametrize("namespace", ["default", "k8s.io"])
def test_an_expiring_image_that_is_made_under_a_lease_is_listed_there(
    client: Client, store: ImageStore, namespace: str
) -> None:
    mine = client.within(namespace)
    mine.create_lease("mine")
    leased = mine.leasing("mine")
    digest = mine.ingest(b"hello")
    leased.create_image("n", digest, labels={"containerd.io/gc.expire": PAST})
    leased.create_image("lasting", digest)
    changed = leased.create_image("changed", digest)
    changed.labels["containerd.io/gc.expire"] = PAST
    leased.update_image(changed, "labels")
    assert mine.resources("mine") == [("images", "changed"), ("images", "n")]
    store.collect_garbage()
    assert mine.image_names() == ["changed", "lasting", "n"]
    with refused(NOT_FOUND, "lease"):
        mine.leasing("nobody").create_image("other", digest, labels={"containerd.io/gc.expire": PAST})
    assert mine.image_names() == ["changed", "lasting", "n"]


def test_a_flat_lease_keeps_an_image_without_its_content(client: Client, store: ImageStore) -> None:
    digest = client.ingest(b"hello")
    client.create_image("n", digest, labels={"containerd.io/gc.expire": PAST})
    client.create_lease("flat", flat="x")
    client.add_resource("flat", "n", "images")
    store.collect_garbage()
    assert (client.image_names(), client.digests()) == (["n"], [])


def test_a_lease_is_no_reason_against_a_removal(client: Client, store: ImageStore) -> None:
    digest = client.ingest(b"hello")
    client.create_image("n", digest)
    client.create_lease("mine")
    client.add_resource("mine", "n", "images")
    client.delete_image("n")
    assert (client.image_names(), client.digests()) == ([], [])
    assert client.resources("mine") == [("images", "n")]


def test_an_expired_lease_keeps_no_image(client: Client, store: ImageStore) -> None:
    digest = client.ingest(b"hello")
    client.create_image("n", digest, labels={"containerd.io/gc.expire": PAST})
    client.create_lease("past", expire=PAST)
    client.add_resource("past", "n", "images")
    store.collect_garbage()
    assert (client.image_names(), client.digests()) == ([], [])


def test_a_commit_ends_the_writes_place_in_its_lease(client: Client) -> None:
    client.create_lease("mine")
    leased = client.leasing("mine")
    leased.write(message(WRITE, "r", data=b"hel"))
    leased.write(message(COMMIT, "r", data=b"lo", offset=3))
    assert client.resources("mine") == [("content", HELLO)]


def test_a_lease_in_the_stores_namespace_keeps_what_records_know_of_edges(client: Client, store: ImageStore) -> None:
    home = client.within("k8s.io")
    manifest, layer = (Digest.parse(home.ingest(data, ref=data.decode())) for data in (b"manifest", b"layer"))
    store.metadata.graph.put_edges({manifest: [layer]})
    home.create_lease("mine")
    home.add_resource("mine", str(manifest))
    store.collect_garbage()
    assert home.digests() == sorted([str(manifest), str(layer)])


def test_no_name_is_longer_than_containerds_database_could_hold(client: Client) -> None:
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "a name of at most 32768 bytes"):
        client.create_lease("\u00e4" * 20_000)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "a name of at most 32768 bytes"):
        client.write(message(WRITE, "r" * 32_769, data=b"x"))
    assert client.lease_ids() == client.statuses() == []


def test_a_lease_that_exists_is_named_as_its_caller_named_it(client: Client) -> None:
    client.create_lease("mine")
    with refused(grpc.StatusCode.ALREADY_EXISTS, "lease 'mine' exists already"):
        client.create_lease("mine")
