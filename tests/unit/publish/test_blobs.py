"""Bringing one blob: each outcome of a write without bytes, of sending, and of labels."""

from __future__ import annotations

import errno
import gzip
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from imagestore import CancelToken, Descriptor, Digest, Reference
from imagestore.content.local import LocalContentStore
from imagestore.errors import (
    ContentNotFoundError,
    DeadlineExceededError,
    ImageServiceError,
    IntegrityError,
    NotFoundError,
    OperationCancelledError,
)
from imagestore.oci.media_types import OCI_CONFIG, OCI_LAYER_GZIP
from imagestore.publish import ContentWay
from imagestore.publish.blobs import SOURCE_LABEL, BlobBringer
from imagestore.publish.containerd import Containerd
from imagestore.publish.content_folder import ContentFolder
from tests.support.fake_containerd import FakeContainerd, fake_containerd
from tests.support.patience import until

LEASE, STORE, REPOSITORY = "lease", "0a" * 16, Reference.parse("registry.example/library/app:1")
LABEL = f"{SOURCE_LABEL}registry.example"
LAYER, CONFIG = gzip.compress(b"a layer" * 1000, mtime=0), b'{"rootfs": {}}'
WAYS = [ContentWay.LINKED, ContentWay.OWN_FILE, ContentWay.SENT]
PLACED = WAYS[:2]


def descriptor(data: bytes, media_type: str = OCI_LAYER_GZIP) -> Descriptor:
    return Descriptor(media_type, Digest.of(data), len(data))


@dataclass
class Bringing:
    """A store's content, a containerd, and a bringer between them."""

    content: LocalContentStore
    fake: FakeContainerd
    client: Containerd

    def bringer(self, way: ContentWay) -> BlobBringer:
        folder = None if way is ContentWay.SENT else ContentFolder(self.fake.root, way, STORE)
        return BlobBringer(self.client, self.content, folder, STORE)

    def layer(self, way: ContentWay, data: bytes = LAYER) -> ContentWay:
        """Bring a layer."""
        return self.bringer(way).bring_layer(descriptor(data), [REPOSITORY], LEASE, CancelToken())

    def document(self, way: ContentWay, labels: dict[str, str] | None = None) -> ContentWay:
        """Bring a config."""
        config = descriptor(CONFIG, OCI_CONFIG)
        return self.bringer(way).bring_document(config, labels or {}, [REPOSITORY], LEASE, CancelToken())

    def there(self, data: bytes, recorded: bytes | None = None, *, labels: dict[str, str] | None = None) -> None:
        """Something lies under the name of a blob, perhaps with a content record."""
        path = self.fake.state.path(str(Digest.of(data)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if recorded is None else recorded)
        if labels is not None:
            self.fake.record_content(str(Digest.of(data)), len(data), labels)

    def held(self, data: bytes = LAYER) -> bool:
        """Whether the lease holds a blob, so that it survives a collection."""
        self.fake.collect()
        return str(Digest.of(data)) in self.fake.blobs() & self.fake.files()

    def found(self, data: bytes = LAYER) -> bytes:
        """The bytes that containerd has."""
        return self.fake.state.read("k8s.io", str(Digest.of(data)))

    def labels(self, data: bytes = LAYER) -> dict[str, str]:
        """The labels of a blob."""
        return self.fake.state.blob("k8s.io", str(Digest.of(data))).labels


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Bringing]:
    content = LocalContentStore(tmp_path / "store" / "content", tmp_path / "store" / "locks")
    for data in (LAYER, CONFIG):
        with content.writer("r", expected=Digest.of(data), total=len(data), cancel=CancelToken()) as writer:
            writer.write(data)
            writer.commit(Digest.of(data))
    with fake_containerd(tmp_path / "c") as fake:
        fake.state.create_lease("k8s.io", LEASE, {})
        client = Containerd(fake.address)
        yield Bringing(content, fake, client)
        client.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_is_brought_and_held(here: Bringing, way: ContentWay) -> None:
    assert here.layer(way) is way
    assert here.found() == LAYER
    assert here.labels() == {LABEL: "library/app"}
    assert here.held()
    assert not here.fake.here.ingests
    sent = here.fake.faults.calls
    # One message without bytes; the first and the last of a stream with them.
    assert sent["Content/Write"] == 1
    path = here.fake.state.path(str(Digest.of(LAYER)))
    assert path.samefile(here.content.path(Digest.of(LAYER))) is (way is ContentWay.LINKED)


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_that_is_there_joins_the_lease_and_gets_labels(here: Bringing, way: ContentWay) -> None:
    here.there(LAYER, labels={LABEL: "library/zoo,library/another", "theirs": "1"})
    assert here.layer(way) is ContentWay.PRESENT
    assert here.labels() == {LABEL: "library/another,library/app,library/zoo", "theirs": "1"}
    assert here.held()
    here.fake.faults.clear()
    assert here.layer(way) is ContentWay.PRESENT
    assert "Content/Update" not in here.fake.faults.calls


@pytest.mark.parametrize("way", WAYS)
def test_a_list_of_sources_that_is_too_long_stays_as_it_is(here: Bringing, way: ContentWay) -> None:
    long = "library/zoo" + "o" * (4096 - len(LABEL) - len("library/zoo"))
    here.there(LAYER, labels={LABEL: long})
    assert here.layer(way) is ContentWay.PRESENT
    assert here.labels() == {LABEL: long}


def test_labels_of_several_repositories(here: Bringing) -> None:
    repositories = [
        Reference.parse(each) for each in ("a.example/x:1", "a.example/w:2", "b.example:5000/y@" + str(Digest.of(b"")))
    ]
    here.bringer(ContentWay.SENT).bring_layer(descriptor(LAYER), repositories, LEASE, CancelToken())
    assert here.labels() == {f"{SOURCE_LABEL}a.example": "w,x", f"{SOURCE_LABEL}b.example:5000": "y"}


@pytest.mark.parametrize("way", PLACED)
def test_a_record_whose_file_is_gone_is_healed(here: Bringing, way: ContentWay) -> None:
    here.fake.record_content(str(Digest.of(LAYER)), len(LAYER), {})
    assert here.layer(way) is ContentWay.PRESENT
    assert here.found() == LAYER
    assert here.held()


@pytest.mark.parametrize("way", PLACED)
@pytest.mark.parametrize("there", [b"", b"shorter", LAYER + b"longer"], ids=len)
def test_a_file_of_another_size_is_replaced(here: Bringing, way: ContentWay, there: bytes) -> None:
    here.there(LAYER, there)
    assert here.layer(way) is ContentWay.PRESENT
    assert here.found() == LAYER
    assert here.held()


@pytest.mark.parametrize("way", PLACED)
def test_a_file_of_the_same_size_is_taken_unread(here: Bringing, way: ContentWay) -> None:
    """Applying it says whether it is the layer."""
    wrong = bytes(len(LAYER))
    here.there(LAYER, wrong)
    assert here.layer(way) is ContentWay.PRESENT
    assert here.found() == wrong
    assert here.bringer(way).heal(descriptor(LAYER), CancelToken())
    assert here.found() == LAYER
    assert not here.bringer(way).heal(descriptor(LAYER), CancelToken())


def test_what_is_sent_is_healed_by_nobody(here: Bringing) -> None:
    here.layer(ContentWay.SENT)
    assert not here.bringer(ContentWay.SENT).heal(descriptor(LAYER), CancelToken())


@pytest.mark.parametrize("way", PLACED)
@pytest.mark.parametrize("times", [1, 4])
def test_a_collector_that_is_faster(here: Bringing, way: ContentWay, times: int) -> None:
    here.fake.faults.meanwhile("Content/Write", here.fake.collect, count=times)
    assert here.layer(way) is way
    assert here.held()


@pytest.mark.parametrize("way", PLACED)
def test_a_collector_that_is_always_faster(here: Bringing, way: ContentWay) -> None:
    """The sixth time the bytes are sent."""
    here.fake.faults.meanwhile("Content/Write", here.fake.collect, count=5)
    assert here.layer(way) is ContentWay.SENT
    assert here.fake.faults.calls["Content/Write"] == 6
    assert here.held()


@pytest.mark.parametrize("way", PLACED)
def test_content_that_is_not_shared_is_sent(here: Bringing, way: ContentWay) -> None:
    here.fake.rules.is_sharing = False
    assert here.layer(way) is ContentWay.SENT
    assert here.found() == LAYER
    assert here.held()


@pytest.mark.parametrize("way", PLACED)
def test_a_folder_that_can_not_be_written(here: Bringing, way: ContentWay, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    assert here.layer(way) is ContentWay.SENT
    assert here.held()


@pytest.mark.parametrize("way", PLACED)
def test_a_folder_that_went(here: Bringing, way: ContentWay) -> None:
    here.fake.root.rmdir()
    assert here.layer(way) is ContentWay.SENT


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_that_the_store_does_not_have(here: Bringing, way: ContentWay) -> None:
    here.content.delete(Digest.of(LAYER))
    with pytest.raises(ContentNotFoundError):
        here.layer(way)
    assert here.fake.files() == set()


@pytest.mark.parametrize("way", PLACED)
def test_a_layer_that_goes_while_it_is_placed(here: Bringing, way: ContentWay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "imagestore.publish.content_folder.reach",
        lambda _: here.content.path(Digest.of(LAYER)).unlink(missing_ok=True),
    )
    with pytest.raises(ContentNotFoundError):
        here.layer(way)


@pytest.mark.parametrize("way", WAYS)
def test_without_the_lease_nothing_is_brought(here: Bringing, way: ContentWay) -> None:
    here.fake.here.leases.clear()
    with pytest.raises(NotFoundError, match="lease"):
        here.layer(way)
    here.fake.collect()
    assert here.fake.blobs() == here.fake.files() == set()


@pytest.mark.parametrize("way", WAYS)
def test_a_blob_that_goes_before_it_is_labelled(here: Bringing, way: ContentWay) -> None:
    here.there(LAYER, labels={})
    here.fake.faults.meanwhile("Content/Info", lambda: here.fake.remove_content(str(Digest.of(LAYER))))
    with pytest.raises(NotFoundError, match="no more"):
        here.layer(way)


# Sending.


def test_sending_goes_on_where_it_ended(here: Bringing) -> None:
    here.fake.faults.refuse("Content/Write/WRITE", grpc.StatusCode.UNKNOWN, after=True)
    with pytest.raises(ImageServiceError):
        here.layer(ContentWay.SENT)
    (ingest,) = here.fake.here.ingests.values()
    assert ingest.offset == len(LAYER)
    assert here.layer(ContentWay.SENT) is ContentWay.PRESENT  # no byte was sent now
    assert here.found() == LAYER


def test_large_blobs_are_sent_in_parts(here: Bringing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.publish.content_writes.CHUNK_BYTES", 3)
    assert here.layer(ContentWay.SENT) is ContentWay.SENT
    assert here.found() == LAYER


@pytest.mark.parametrize(
    "damage", [LAYER[:-1] + b"!", LAYER[:-1], LAYER + b"!", b""], ids=["other", "short", "long", "empty"]
)
def test_a_damaged_blob_of_the_store_is_not_taken(here: Bringing, damage: bytes) -> None:
    path = here.content.path(Digest.of(LAYER))
    path.chmod(0o644)
    path.write_bytes(damage)
    if damage.startswith(LAYER):  # the rest isn't sent
        assert here.layer(ContentWay.SENT) is ContentWay.SENT
        return
    for _ in range(2):
        with pytest.raises(IntegrityError, match="doesn't take"):
            here.layer(ContentWay.SENT)
        assert not here.fake.here.ingests
    path.write_bytes(LAYER)
    assert here.layer(ContentWay.SENT) is ContentWay.SENT


@pytest.mark.parametrize("begun", [b"something else", LAYER + b"too long"])
def test_an_unfinished_write_of_other_bytes_ends(here: Bringing, begun: bytes) -> None:
    ref = f"imagestore-{STORE}-{Digest.of(LAYER)}"
    here.fake.state.open_write("k8s.io", ref, "", 0, LEASE).data += begun
    here.fake.here.ingests[ref].is_locked = False
    with pytest.raises(IntegrityError):
        here.layer(ContentWay.SENT)
    assert here.layer(ContentWay.SENT) is ContentWay.SENT
    assert here.found() == LAYER


def test_who_brings_a_blob_that_is_being_sent_waits(here: Bringing) -> None:
    """A write is one client's at a time: containerd refuses the second as unavailable."""
    gate = threading.Event()
    here.fake.faults.meanwhile("Content/Write/STAT", gate.wait, after=True)
    bringer, ways = here.bringer(ContentWay.SENT), []

    def bring() -> None:
        ways.append(bringer.bring_layer(descriptor(LAYER), [REPOSITORY], LEASE, CancelToken()))

    threads = [threading.Thread(target=bring) for _ in range(3)]
    for each in threads:
        each.start()
    until(lambda: here.fake.faults.calls["Content/Write"], "the first sends")
    gate.set()
    for each in threads:
        each.join()
    assert sorted(each.name for each in ways) == ["PRESENT", "PRESENT", "SENT"]


def test_cancelling_ends_a_write(here: Bringing) -> None:
    token = CancelToken()
    here.fake.faults.meanwhile("Content/Write/STAT", lambda: token.cancel("enough"), after=True)
    with pytest.raises(OperationCancelledError, match="enough"):
        here.bringer(ContentWay.SENT).bring_layer(descriptor(LAYER), [REPOSITORY], LEASE, token)


# Documents.


@pytest.mark.parametrize("way", WAYS)
def test_a_document_is_sent_with_its_labels(here: Bringing, way: ContentWay) -> None:
    assert here.document(way, {"keeps": "something"}) is ContentWay.SENT
    assert here.found(CONFIG) == CONFIG
    assert here.labels(CONFIG) == {LABEL: "library/app", "keeps": "something"}
    assert here.document(way, {"keeps": "another", "more": "1"}) is ContentWay.PRESENT
    assert here.labels(CONFIG) == {LABEL: "library/app", "keeps": "another", "more": "1"}
    assert here.held(CONFIG)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("there", [bytes(len(CONFIG)), b"{}"], ids=["same size", "other size"])
@pytest.mark.parametrize("way", PLACED)
def test_a_damaged_document_is_replaced(here: Bringing, way: ContentWay, there: bytes, recorded: bool) -> None:
    here.there(CONFIG, there, labels={} if recorded else None)
    here.document(way, {"keeps": "something"})
    assert here.found(CONFIG) == CONFIG
    assert here.labels(CONFIG)["keeps"] == "something"
    assert here.held(CONFIG)


def test_a_damaged_document_that_can_not_be_replaced(here: Bringing, monkeypatch: pytest.MonkeyPatch) -> None:
    here.there(CONFIG, bytes(len(CONFIG)), labels={})
    with pytest.raises(IntegrityError, match="is damaged") as refused:
        here.document(ContentWay.SENT)
    assert f"content rm {Digest.of(CONFIG)}" in refused.value.hint

    def readonly(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "rename", readonly)
    with pytest.raises(IntegrityError, match="can't be replaced: Read-only"):
        here.document(ContentWay.LINKED)


# Kept layers.


def test_a_kept_layer_is_linked_again_after_a_repair(here: Bringing) -> None:
    def whole(blob: Descriptor) -> None:
        """The store's file is."""

    bringer, layer = here.bringer(ContentWay.LINKED), descriptor(LAYER)
    assert not bringer.relink(layer, whole)  # containerd doesn't have it
    here.layer(ContentWay.LINKED)
    assert not bringer.relink(layer, whole)
    path = here.content.path(layer.digest)
    path.unlink()
    path.write_bytes(LAYER)
    assert bringer.relink(layer, whole)
    assert path.samefile(here.fake.state.path(str(layer.digest)))
    assert not here.bringer(ContentWay.OWN_FILE).relink(layer, whole)


def test_a_damaged_file_of_the_store_replaces_nothing(here: Bringing) -> None:
    bringer, layer = here.bringer(ContentWay.LINKED), descriptor(LAYER)

    def damaged(blob: Descriptor) -> None:
        raise IntegrityError(f"{blob.digest} is damaged")

    here.layer(ContentWay.LINKED)
    path = here.content.path(layer.digest)
    path.unlink()
    path.write_bytes(b"other")
    with pytest.raises(IntegrityError, match="is damaged"):
        bringer.relink(layer, damaged)
    assert here.fake.state.path(str(layer.digest)).read_bytes() == LAYER


def test_a_write_that_hangs_ends(here: Bringing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.publish.content_writes._LEAST_SECONDS", 0.05)
    gate = threading.Event()
    here.fake.faults.meanwhile("Content/Write", gate.wait)
    try:
        with pytest.raises(DeadlineExceededError):
            here.layer(ContentWay.SENT)
    finally:
        gate.set()
    assert here.layer(ContentWay.SENT) is ContentWay.SENT
