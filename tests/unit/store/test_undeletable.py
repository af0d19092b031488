"""A file that can't be deleted keeps no other from being freed, and whoever collects is told of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagestore import CancelToken, Descriptor, Digest, EvictionPolicy, ImageStore
from imagestore.content.ingests import ingest_name
from imagestore.errors import DocumentError, UndeletableError
from imagestore.oci.media_types import OCI_LAYER_GZIP
from imagestore.store.garbage import GarbageReport
from imagestore.store.leases import held
from imagestore.store.maintenance.eviction import EvictionReport
from imagestore.store.maintenance.removal import Removal
from imagestore.store.pull.undo import undone_on_failure
from tests.support.node import PYTHON, Node, node


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path) as opened:
        yield opened


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes files of one name undeletable, as an immutable file is."""
    unlink, refused = os.unlink, set[str]()

    def checked(path: str | Path, *, dir_fd: int | None = None) -> None:
        if os.path.basename(path) in refused:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", checked)
    return refused.add


def blobs(store: ImageStore) -> set[Digest]:
    return {info.digest for info in store.content.walk()}


def put(store: ImageStore, data: bytes) -> Digest:
    digest = Digest.of(data)
    with store.content.writer(f"layer-{digest}", expected=digest, total=len(data), cancel=CancelToken()) as writer:
        writer.write(data)
        writer.commit(digest, len(data))
    return digest


@pytest.mark.parametrize("count", [3, 150])
def test_a_collection_goes_on_behind_what_it_can_not_delete(
    here: Node, refuse: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    garbage = [put(here.store, str(number).encode()) for number in range(count)]
    stuck = garbage[count // 2]
    refuse(stuck.encoded)
    with pytest.raises(UndeletableError, match=f"{stuck.encoded}: can't delete: Operation not permitted$") as caught:
        here.store.collect_garbage()
    report = caught.value.report
    assert isinstance(report, GarbageReport)
    assert set(report.digests) == set(garbage) - {stuck}
    assert report.kept_blobs == 1
    assert caught.value.failures == report.failures
    assert caught.value.failures.keys() == {str(stuck)}
    assert blobs(here.store) == {stuck}
    with pytest.raises(UndeletableError, match=stuck.encoded):
        here.store.collect_garbage()
    monkeypatch.undo()
    assert here.store.collect_garbage().bytes_freed == len(str(count // 2))


def test_what_is_known_of_content_that_stays_stays_too_and_the_rest_below_it_goes(
    here: Node, refuse: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = here.store.pull(PYTHON)
    store, manifest = here.store, image.record.manifest.digest
    children = set(store.metadata.graph.own_children(manifest))
    store.metadata.graph.label_content(manifest, {"note": "kept"})
    store.remove(PYTHON)
    refuse(manifest.encoded)
    for _ in range(2):
        with pytest.raises(UndeletableError):
            store.collect_garbage()
        assert blobs(store) == {manifest}
        assert set(store.metadata.graph.own_children(manifest)) == children
        assert store.metadata.graph.content_labels(manifest) == {"note": "kept"}
    assert store.pull(PYTHON).id == image.id, "what is there is no whole image, and no obstacle"
    store.remove(PYTHON)
    monkeypatch.undo()
    store.collect_garbage()
    assert blobs(store) == set()
    assert store.metadata.graph.own_children(manifest) == ()


def test_removing_and_evicting_name_it_and_say_what_was_done(here: Node, refuse: Callable[[str], None]) -> None:
    store = here.store
    manifest = store.pull(PYTHON).record.manifest.digest
    refuse(manifest.encoded)
    with pytest.raises(UndeletableError) as caught:
        store.remove(PYTHON, collect=True)
    removals = caught.value.report
    assert isinstance(removals, Removal)
    assert [name for name, _ in removals.by_name[PYTHON]] == [PYTHON]
    assert removals.bytes_freed > 0
    assert blobs(store) == {manifest}
    store.pull(PYTHON)
    with pytest.raises(UndeletableError) as caught:
        store.evict(EvictionPolicy(keep_last=0))
    evicted = caught.value.report
    assert isinstance(evicted, EvictionReport)
    assert [each.record.reference for each in evicted.evicted] == [PYTHON]
    assert blobs(store) == {manifest}


def test_an_ingest_that_can_not_be_removed_is_not_reported_as_removed(
    here: Node, refuse: Callable[[str], None]
) -> None:
    store = here.store
    for name in ("stuck", "other"):
        with store.content.writer(name, expected=Digest.of(b"x"), total=9, cancel=CancelToken()) as writer:
            writer.write(b"123")
        folder = (store.root / "content") / "ingest" / ingest_name(name)
        (folder / "updatedat").write_text("2020-01-01T00:00:00Z")
        os.utime(folder / "data", (0, 0))
    ((store.root / "content") / "ingest" / ingest_name("stuck") / "immutable").touch()
    garbage = put(store, b"garbage")
    refuse("immutable")
    with pytest.raises(UndeletableError, match="can't remove ingest") as caught:
        store.collect_garbage()
    report = caught.value.report
    assert isinstance(report, GarbageReport)
    assert (report.ingests, report.digests) == (("other",), (garbage,))
    assert (report.bytes_freed, len(report.failures)) == (3 + len(b"garbage"), 1)


def test_a_failed_pull_gives_back_all_that_can_be_and_ends_in_its_own_error(
    here: Node, refuse: Callable[[str], None]
) -> None:
    store, brought = here.store, [b"one", b"two", b"three"]
    descriptors = [Descriptor(OCI_LAYER_GZIP, Digest.of(data), len(data)) for data in brought]

    def bring() -> None:
        with (
            held(store.metadata, purpose="pull", digests=[each.digest for each in descriptors]) as lease,
            undone_on_failure(store.metadata, store.content, lease, descriptors, ()),
        ):
            for data in brought:
                put(store, data)
            raise DocumentError("manifest", ["breaks its rules"])

    refuse(descriptors[0].digest.encoded)
    with pytest.raises(DocumentError):
        bring()
    assert blobs(store) == {descriptors[0].digest}
