"""Each namespace sees its own: content is shared by digest, never by accident, and collected by namespace."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator

import grpc
import pytest

from imagestore import Digest, ImageStore
from imagestore.metadata.records import HolderKind
from imagestore.protos.containerd import content_pb2
from imagestore.protos.containerd import namespaces_pb2 as wire
from imagestore.store.maintenance import why
from tests.support.containerd_client import COMMIT, STAT, WRITE, Client, digest_of, message, refused

NOT_FOUND, PRECONDITION = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION
HELLO = digest_of(b"hello")
ROOT = {"containerd.io/gc.root": "yes"}


def has_file(store: ImageStore, digest: str) -> bool:
    return store.content.exists(Digest.parse(digest))


def test_content_of_one_namespace_is_not_there_in_another(client: Client) -> None:
    client.ingest(b"hello")
    for other in (client.within("other"), client.within("k8s.io")):
        assert not other.knows(HELLO)
        assert other.digests() == []
        with refused(NOT_FOUND):
            other.read(HELLO)
        with refused(NOT_FOUND):
            other.label(HELLO, {"a": "b"})
        with refused(NOT_FOUND):
            other.delete(HELLO)
    assert client.knows(HELLO)


def test_another_namespace_gets_content_by_naming_its_digest_without_sending_a_byte(client: Client) -> None:
    client.ingest(b"hello", labels={"a": "1"})
    other = client.within("other")
    (answer, _) = other.write(message(STAT, "r", expected=HELLO, total=5))
    assert (answer.offset, answer.total, answer.digest) == (5, 5, HELLO)
    assert not other.knows(HELLO), "only a commit makes the record"
    assert other.statuses() == []
    answers = other.write(message(STAT, "r", expected=HELLO), message(COMMIT, offset=5, total=5, labels={"b": "2"}))
    assert answers[-1].digest == HELLO
    assert dict(other.info(HELLO).labels) == {"b": "2"}
    assert dict(client.info(HELLO).labels) == {"a": "1"}, "labels are each namespace's own"
    assert other.bytes_of(HELLO) == b"hello"


def test_appending_to_shared_content_makes_new_content(client: Client) -> None:
    client.ingest(b"hello")
    other = client.within("other")
    answers = other.write(message(STAT, "r", expected=HELLO), message(WRITE, data=b" world", offset=5))
    assert answers[-1].offset == 11
    assert answers[-1].digest == digest_of(b"hello world")
    assert other.statuses() == ["r"]
    assert other.write(message(COMMIT, "r", offset=11))[-1].digest == digest_of(b"hello world")
    assert client.bytes_of(HELLO) == b"hello"
    assert not other.knows(HELLO)


def test_writing_shared_content_from_the_start_makes_new_content(client: Client) -> None:
    client.ingest(b"hello")
    other = client.within("other")
    answers = other.write(message(STAT, "r", expected=HELLO), message(WRITE, data=b"hi"))
    assert (answers[-1].offset, answers[-1].digest) == (2, digest_of(b"hi"))


def test_sending_bytes_that_another_namespace_has_makes_them_known_here_too(client: Client) -> None:
    client.ingest(b"hello")
    other = client.within("other")
    assert other.ingest(b"hello") == HELLO
    assert other.knows(HELLO)


def test_shared_content_that_was_collected_meanwhile_is_not_found_and_can_be_written(
    client: Client, store: ImageStore
) -> None:
    client.ingest(b"hello")
    other, collected = client.within("other"), threading.Event()

    def messages() -> Iterator[content_pb2.WriteContentRequest]:
        yield message(STAT, "r", expected=HELLO)
        collected.wait(60)
        yield message(COMMIT, offset=5)

    stream = other.content.Write(messages(), metadata=other.headers)
    assert next(stream).offset == 5
    store.collect_garbage()
    assert not has_file(store, HELLO)
    collected.set()
    with refused(NOT_FOUND, "collected since then"):
        list(stream)
    assert not other.knows(HELLO)
    other.ingest(b"hello")
    assert other.knows(HELLO)


def test_deleting_in_one_namespace_leaves_the_other_and_then_the_file_goes(client: Client, store: ImageStore) -> None:
    other = client.within("other")
    client.ingest(b"hello", labels=ROOT)
    other.ingest(b"hello", labels=ROOT)
    client.delete(HELLO)
    assert not client.knows(HELLO)
    store.collect_garbage()
    assert other.bytes_of(HELLO) == b"hello"
    other.delete(HELLO)
    store.collect_garbage()
    assert not has_file(store, HELLO)


def test_labels_keep_content_within_their_namespace_only(client: Client, store: ImageStore) -> None:
    other = client.within("other")
    child, parent = client.ingest(b"child"), client.ingest(b"parent")
    other.ingest(b"child")
    client.label(parent, {**ROOT, "containerd.io/gc.ref.content.l.0": child})
    store.collect_garbage()
    assert client.digests() == sorted([child, parent])
    assert other.digests() == []
    client.label(parent, ROOT)
    store.collect_garbage()
    assert client.digests() == [parent]
    assert not has_file(store, child)


def test_what_nothing_names_goes_with_a_collection_and_expiry_on_content_means_nothing(
    client: Client, store: ImageStore
) -> None:
    kept = client.ingest(b"kept", labels={**ROOT, "containerd.io/gc.expire": "2000-01-01T00:00:00Z"})
    client.ingest(b"gone")
    client.within("k8s.io").ingest(b"gone too")
    store.collect_garbage()
    assert client.digests() == [kept]
    assert client.within("k8s.io").digests() == []
    assert [str(info.digest) for info in store.content.walk()] == [kept]


def test_an_unfinished_write_keeps_its_expected_content_and_itself(client: Client, store: ImageStore) -> None:
    other = client.within("other")
    client.ingest(b"hello")
    other.write(message(WRITE, "r", data=b"hel", expected=digest_of(b"help")))
    store.collect_garbage()
    assert other.statuses() == ["r"]
    other.write(message(COMMIT, "r", offset=3, data=b"p"))
    assert other.knows(digest_of(b"help"))


def test_the_stores_own_namespace_sees_what_the_store_holds_and_can_not_lose_it(
    client: Client, store: ImageStore
) -> None:
    home, held = client.within("k8s.io"), Digest.of(b"hello")
    store.metadata.leases.create("mine", lifetime_seconds=3600)
    store.metadata.leases.add_content("mine", [held])
    client.ingest(b"hello")
    assert home.digests() == [HELLO], "somebody else's by record, and the store's own by its lease"
    assert home.bytes_of(HELLO) == b"hello"
    with refused(PRECONDITION, "held by an image or a lease"):
        home.delete(HELLO)
    home.label(HELLO, {"a": "b"}, "labels.a")
    assert store.metadata.graph.content_labels(held) == {"a": "b"}
    assert dict(client.info(HELLO).labels) == {}
    store.metadata.leases.delete("mine")
    assert not home.knows(HELLO)
    assert client.knows(HELLO)


def test_unheld_content_of_the_stores_own_namespace_goes_at_once(client: Client, store: ImageStore) -> None:
    home = client.within("k8s.io")
    home.ingest(b"hello", labels=ROOT)
    store.collect_garbage()
    assert home.digests() == [HELLO]
    home.delete(HELLO)
    assert not home.knows(HELLO)
    assert not has_file(store, HELLO)


@pytest.mark.parametrize("namespace", ["default", "k8s.io"])
def test_a_file_that_can_not_be_looked_at_hides_no_other_from_a_list(
    client: Client, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    within = client.within(namespace)
    digests = sorted(within.ingest(data) for data in (b"one", b"two"))
    lstat = os.lstat

    def fail(path: str) -> os.stat_result:
        if os.fspath(path).endswith(digests[0].removeprefix("sha256:")):
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        return lstat(path)

    monkeypatch.setattr(os, "lstat", fail)
    assert within.digests() == digests
    with refused(grpc.StatusCode.DATA_LOSS, "the disk can't read it"):
        within.info(digests[0])


def test_why_names_the_namespace(client: Client, store: ImageStore) -> None:
    client.ingest(b"hello")
    (chain,) = why.explain(store.metadata, Digest.of(b"hello"))
    assert (chain.holder.kind, chain.holder.name) == (HolderKind.NAMESPACE, "default")


def test_a_pulls_own_ingests_are_shown_in_the_stores_namespace(client: Client, store: ImageStore) -> None:
    home = client.within("k8s.io")
    with store.content.try_writer("layer-sha256:1", algorithm="sha256", total=9) as writer:
        writer.write(b"half")
        assert home.statuses() == ["layer-sha256:1"]
        with refused(grpc.StatusCode.UNAVAILABLE):
            home.abort("layer-sha256:1")
    assert home.status("layer-sha256:1").offset == 4
    assert client.statuses() == []
    home.write(message(WRITE, "mine", data=b"x"))
    assert home.statuses() == ["layer-sha256:1", "mine"]
    home.abort("layer-sha256:1")
    assert home.statuses() == ["mine"]
    with refused(NOT_FOUND):
        home.status("default/1/mine")


def test_using_a_namespace_makes_it_and_emptying_it_lets_it_go(client: Client, store: ImageStore) -> None:
    assert client.namespace_names() == ["k8s.io"]
    client.ingest(b"hello")
    assert client.namespace_names() == ["default", "k8s.io"]
    with refused(PRECONDITION, "must be empty"):
        client.namespaces.Delete(wire.DeleteNamespaceRequest(name="default"))
    client.delete(HELLO)
    client.namespaces.Delete(wire.DeleteNamespaceRequest(name="default"))
    assert client.namespace_names() == ["k8s.io"]


def test_namespaces_have_labels(client: Client) -> None:
    def get(name: str) -> dict[str, str]:
        return dict(client.namespaces.Get(wire.GetNamespaceRequest(name=name)).namespace.labels)

    assert get("nobody") == {}
    made = wire.Namespace(name="a", labels={"x": "1"})
    client.namespaces.Create(wire.CreateNamespaceRequest(namespace=made))
    assert get("a") == {"x": "1"}
    request = wire.UpdateNamespaceRequest(namespace=wire.Namespace(name="a", labels={"y": "2"}))
    request.update_mask.paths.append("labels.y")
    client.namespaces.Update(request)
    assert get("a") == {"x": "1", "y": "2"}
    found = client.namespaces.List(wire.ListNamespacesRequest(filter="labels.y==2")).namespaces
    assert [each.name for each in found] == ["a"]
    with refused(grpc.StatusCode.ALREADY_EXISTS):
        client.namespaces.Create(wire.CreateNamespaceRequest(namespace=made))
    with refused(grpc.StatusCode.ALREADY_EXISTS):
        client.namespaces.Create(wire.CreateNamespaceRequest(namespace=wire.Namespace(name="k8s.io")))
    with refused(grpc.StatusCode.INVALID_ARGUMENT):
        client.namespaces.Create(wire.CreateNamespaceRequest(namespace=wire.Namespace(name="proxy:x")))
    # Labelling makes one, as ctr expects.
    client.namespaces.Update(wire.UpdateNamespaceRequest(namespace=wire.Namespace(name="new", labels={"z": "3"})))
    assert get("new") == {"z": "3"}
    with refused(NOT_FOUND):
        client.namespaces.Delete(wire.DeleteNamespaceRequest(name="nobody"))
    with refused(PRECONDITION, "stays"):
        client.namespaces.Delete(wire.DeleteNamespaceRequest(name="k8s.io"))
