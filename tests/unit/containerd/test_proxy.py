"""The flat face for a containerd that keeps its content here: it alone says what goes."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from imagestore import Digest, ImageStore, platforms
from imagestore.errors import InvalidInputError
from imagestore.metadata.records import proxy_owner
from tests.support.containerd_client import COMMIT, STAT, WRITE, Client, digest_of, message, refused
from tests.support.rpc_server import containerd_face, proxy_face

NOT_FOUND = grpc.StatusCode.NOT_FOUND
HELLO = digest_of(b"hello")


def test_calls_need_no_namespace_and_a_given_one_means_nothing(proxied: Client) -> None:
    proxied.ingest(b"hello", ref="default/1/r")
    assert proxied.digests() == proxied.within("default").digests() == [HELLO]
    assert proxied.within("a b").bytes_of(HELLO) == b"hello"


@pytest.mark.parametrize("lease", ["123-abcd", "known", "\u00e4".encode().hex() * 400])
def test_the_lease_of_the_containerd_in_front_means_nothing(proxied: Client, store: ImageStore, lease: str) -> None:
    store.metadata.leases.create("known", lifetime_seconds=3600)
    caller = proxied.within("k8s.io").leasing(lease)
    caller.write(message(WRITE, "k8s.io/1/r", data=b"hel"))
    assert (caller.status("k8s.io/1/r").offset, caller.statuses()) == (3, ["k8s.io/1/r"])
    caller.abort("k8s.io/1/r")
    assert caller.statuses() == []
    assert caller.ingest(b"hello", ref="k8s.io/1/r") == HELLO
    with refused(grpc.StatusCode.ALREADY_EXISTS):
        caller.write(message(STAT, "k8s.io/2/r", expected=HELLO))
    assert (caller.bytes_of(HELLO), caller.digests(), caller.info(HELLO).size) == (b"hello", [HELLO], 5)
    assert caller.label(HELLO, {"a": "b"}) == {"a": "b"}
    assert store.metadata.leases.content("known") == ()
    caller.delete(HELLO)
    assert list(store.content.walk()) == []


def test_its_content_is_never_collected_by_the_store(proxied: Client, store: ImageStore) -> None:
    proxied.ingest(b"hello", ref="default/1/r")
    proxied.write(message(WRITE, "default/1/half", data=b"hel"))
    store._parts.clock = lambda: time.time() + 9e6
    store.collect_garbage()
    assert proxied.bytes_of(HELLO) == b"hello"
    assert proxied.statuses() == ["default/1/half"]
    assert proxied.status("default/1/half").offset == 3


def test_what_it_deletes_goes_at_once(proxied: Client, store: ImageStore) -> None:
    proxied.ingest(b"hello")
    proxied.delete(HELLO)
    assert list(store.content.walk()) == []
    with refused(NOT_FOUND):
        proxied.delete(HELLO)
    proxied.abort("unknown is no error for a plain content store")


def test_a_write_opened_without_a_digest_is_told_it_at_the_commit(proxied: Client) -> None:
    proxied.write(message(STAT, "default/1/r"), message(WRITE, data=b"hel"), message(WRITE, data=b"lo", offset=3))
    assert proxied.write(message(COMMIT, "default/1/r", offset=5, total=5, expected=HELLO))[-1].digest == HELLO
    with refused(grpc.StatusCode.ALREADY_EXISTS):
        proxied.ingest(b"hello", ref="again")
    with refused(grpc.StatusCode.ALREADY_EXISTS):
        proxied.write(message(STAT, "r", expected=HELLO))


def test_it_lists_what_it_has_and_not_the_stores_own(proxied: Client, store: ImageStore) -> None:
    with store.content.try_writer("own", algorithm="sha256", total=0) as writer:
        writer.write(b"hello")
        writer.commit(Digest.of(b"hello"), 5)
    # A containerd deletes what it lists and doesn't know.
    assert proxied.digests() == []
    with refused(NOT_FOUND):
        proxied.delete(HELLO)
    assert proxied.info(HELLO).size == 5, "found here, it isn't fetched again"
    store.collect_garbage()
    assert proxied.digests() == [HELLO], "and from then on held"
    assert proxied.bytes_of(HELLO) == b"hello"


def test_deleting_what_something_else_holds_leaves_the_file(proxied: Client, store: ImageStore) -> None:
    proxied.ingest(b"hello")
    store.metadata.leases.create("mine", lifetime_seconds=60)
    store.metadata.leases.add_content("mine", [Digest.of(b"hello")])
    proxied.delete(HELLO)
    assert proxied.digests() == []
    assert store.content.exists(Digest.of(b"hello"))


def test_missing_content_is_not_claimed(proxied: Client, store: ImageStore) -> None:
    with refused(NOT_FOUND):
        proxied.info(HELLO)
    assert store.metadata.namespaces.content_records(proxy_owner("containerd")) == []


def test_two_containerds_do_not_touch_each_others_content(tmp_path: Path) -> None:
    def opened() -> ImageStore:
        return ImageStore(tmp_path / "store", host=platforms.parse("linux/amd64"))

    with (
        proxy_face(opened(), tmp_path / "a", name="a") as one,
        proxy_face(opened(), tmp_path / "b", name="b") as two,
        containerd_face(opened(), tmp_path / "c") as three,
    ):
        first, second, plain = Client(one, namespace=""), Client(two, namespace=""), Client(three)
        first.ingest(b"hello", ref="default/1/r")
        assert second.digests() == []
        second.write(message(WRITE, "default/1/r", data=b"hel"))
        assert first.statuses() == []
        assert plain.statuses() == []
        assert plain.within("k8s.io").statuses() == []
        assert plain.digests() == plain.within("k8s.io").digests() == []
        assert second.knows(HELLO)
        first.delete(HELLO)
        assert second.bytes_of(HELLO) == b"hello"
        second.delete(HELLO)
        assert not second.knows(HELLO)


@pytest.mark.parametrize("name", ["", "a b", "proxy:a", "a/b"])
def test_a_proxys_name_is_checked(name: str) -> None:
    with pytest.raises(InvalidInputError):
        proxy_owner(name)


def test_other_services_say_that_they_are_not_here(proxied: Client) -> None:
    with refused(grpc.StatusCode.UNIMPLEMENTED, "not served here"):
        proxied.image_names()
