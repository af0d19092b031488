"""What checks see, what repairs mend, and what a rebuilt database knows, beyond the images that handlers chose."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagestore import lease
from imagestore.archive.importing import ImportOptions
from imagestore.cancel import CancelToken
from imagestore.digest import Digest
from imagestore.errors import ContentNotFoundError, StoreError
from imagestore.observe import BlobDone, Event
from imagestore.store import ImageStore
from imagestore.testing import build_index
from imagestore.upkeep.check import FaultKind
from imagestore.upkeep.policy import Policy
from imagestore.upkeep.rebuild import rebuild
from tests.support.node import HYPERV, PROCESS, PYTHON, Node, node, python_image
from tests.unit.archive import making
from tests.unit.store.test_upkeep import OTHER, damage_database, present, spoil

DAY = 86400.0
NEVER = CancelToken()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    images = {PYTHON: python_image(), OTHER: build_index(["linux/amd64"], seed="other")}
    with node(tmp_path / "store", images) as opened:
        yield opened


def put(store: ImageStore, data: bytes) -> Digest:
    digest = Digest.of(data)
    with store.content.writer(f"unknown-{digest}", expected=digest, total=len(data), cancel=NEVER) as writer:
        writer.write(data)
        writer.commit(digest, len(data))
    return digest


def with_all_platforms(here: Node, folder: Path) -> list[Digest]:
    """Import python whole; the layers of a manifest that no handler chose."""
    archive = making.write(folder / "whole.tar", making.layout_files({PYTHON: python_image()}))
    here.store.import_images(archive, options=ImportOptions(has_all_platforms=True))
    (record,) = here.store.metadata.find_images()
    arm = next(each for each in python_image().manifests if each.platform and each.platform.architecture == "arm64")
    assert arm.descriptor.digest in record.roots
    return [layer.digest for layer in arm.layers]


def test_platforms_that_no_handler_chose_are_checked_and_mended(here: Node, tmp_path: Path) -> None:
    *_, lost = with_all_platforms(here, tmp_path)
    here.store.content.delete(lost)
    report = here.store.check()
    assert [(each.kind, each.digest) for each in report.faults] == [(FaultKind.BLOB_MISSING, lost)]
    assert here.store.repair(report).fetched == (lost,)
    spoil(here.store, lost)
    assert here.store.repair(here.store.check()).fetched == (lost,)
    assert here.store.check().faults == ()


def test_a_rebuild_keeps_platforms_that_no_handler_chose(here: Node, tmp_path: Path) -> None:
    with_all_platforms(here, tmp_path)
    before = present(here.store)
    here.store.close()
    damage_database(here.store.root)
    assert len(rebuild(here.store.root).restored) == 1
    with ImageStore(here.store.root) as store:
        assert store.collect_garbage().digests == ()
        assert present(store) == before
        assert store.check().faults == ()


def test_damage_that_only_a_lease_keeps_is_a_failure(here: Node) -> None:
    kept = put(here.store, b"kept by hand")
    with here.store.hold([kept]):
        spoil(here.store, kept)
        mended = here.store.repair(here.store.check())
    assert (mended.fetched, mended.deleted) == ((), ())
    ((subject, reason),) = mended.failures
    assert subject == str(kept)
    assert "lease" in reason


def test_labels_on_a_manifest_are_no_wrong_edges_and_no_reason_to_pull_again(here: Node) -> None:
    image = here.store.pull(PYTHON)
    labels = {"containerd.io/gc.ref.content.referrer": str(Digest.of(b"signature, not here"))}
    here.store.metadata.label_content(image.manifest.digest, labels)
    assert here.store.check().faults == ()
    before = here.store.get(PYTHON).record
    assert here.store.pull(PYTHON).record == replace(before, used_at=here.store.get(PYTHON).record.used_at)


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes reading one file fail as a bad sector does; the real thing is in the integration tests."""
    bad: set[int] = set()
    real = os.readv if False else os.read

    def make(path: Path) -> None:
        bad.add(path.stat().st_ino)

    assert real
    return make


def test_a_content_file_that_is_a_link_is_not_content(here: Node, tmp_path: Path) -> None:
    image = here.store.pull(PYTHON)
    layer = image.layers[0].digest
    path = here.store.content.path(layer)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert not here.store.content.exists(layer)
    for ask in (here.store.content.info, here.store.content.path, here.store.content.open):
        with pytest.raises(ContentNotFoundError):
            ask(layer)
    report = here.store.check()
    assert [(each.kind, each.digest) for each in report.faults] == [(FaultKind.BLOB_MISSING, layer)]
    assert here.store.repair(report).fetched == (layer,)
    assert (tmp_path / "elsewhere").exists()


def test_work_whose_lease_ended_meanwhile_records_nothing_that_is_gone(here: Node) -> None:
    """A clock that jumps, or a machine that sleeps: another process finds the lease of running work at its end."""

    def a_day_passes(event: Event) -> None:
        if isinstance(event, BlobDone):
            with ImageStore(here.store.root, clock=lambda: time.time() + 2 * DAY) as other:
                other.collect_garbage()

    with pytest.raises(StoreError, match="lease"):
        here.store.pull(PYTHON, observer=a_day_passes)
    assert list(here.store.list()) == []
    image = here.store.pull(PYTHON)
    assert all(path.exists() for path in image.layer_paths)


def test_garbage_goes_before_images_when_the_disk_is_full(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    here.store.pull(PYTHON)
    junk = put(here.store, bytes(100_000))
    usage = here.store.usage()
    total = usage.disk.total_bytes

    def statvfs(_: object) -> os.statvfs_result:
        used = 1_000_000 + here.store.usage_bytes()
        return used

    assert statvfs
    assert total
    assert junk
