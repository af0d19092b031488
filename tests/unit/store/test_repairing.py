"""What checks see, what repairs fix, and what a rebuilt database knows, beyond the images that handlers chose."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from imagestore import CancelToken, Digest, EvictionPolicy, ImageStore, ImportOptions
from imagestore.content import blob_files
from imagestore.content.blob_files import open_blob
from imagestore.errors import (
    ContentNotFoundError,
    IntegrityError,
    OperationCancelledError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
)
from imagestore.events import BlobDone, Event, Observer
from imagestore.metadata.records import HOME
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.store import leases
from imagestore.store.maintenance.check import CheckReport, Fault, FaultKind
from imagestore.store.maintenance.hashing import CheckOptions
from imagestore.store.maintenance.rebuild import rebuild
from imagestore.testing import build_index
from imagestore.util.file_locks import FileLock
from tests.support.node import HYPERV, PYTHON, Node, node, python_image
from tests.support.patience import until
from tests.unit.store.archive import making
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
    here.store.import_images(archive, options=ImportOptions(all_platforms=True))
    (record,) = here.store.metadata.images.find()
    arm = next(each for each in python_image().manifests if each.platform and each.platform.architecture == "arm64")
    assert arm.descriptor.digest in record.roots
    return [layer.digest for layer in arm.layers]


def test_platforms_that_no_handler_chose_are_checked_and_repaired(here: Node, tmp_path: Path) -> None:
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
        repaired = here.store.repair(here.store.check())
    assert (repaired.fetched, repaired.deleted) == ((), ())
    ((subject, reason),) = repaired.failures
    assert subject == str(kept)
    assert "lease" in reason


def test_labels_on_a_manifest_are_no_wrong_edges_and_no_reason_to_pull_again(here: Node) -> None:
    image = here.store.pull(PYTHON)
    labels = {"containerd.io/gc.ref.content.referrer": str(Digest.of(b"signature, not here"))}
    here.store.metadata.graph.label_content(image.manifest.digest, labels)
    assert here.store.check().faults == ()
    before = here.store.get(PYTHON).record
    assert here.store.pull(PYTHON).record == replace(before, used_at=here.store.get(PYTHON).record.used_at)


#: Reading it fails as reading a bad sector does.
UNREADABLE = "/proc/self/mem"


def make_unreadable(store: ImageStore, bad: Digest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk can't read this blob, whatever is written there."""
    whole = store.content.open

    def opened(digest: Digest) -> object:
        return open_blob(UNREADABLE, digest) if digest == bad else whole(digest)

    monkeypatch.setattr(store.content, "open", opened)


def lose_sector(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk can't read this file; another one in its place it can."""
    number = os.stat(path).st_ino

    def readinto(file: io.FileIO, buffer: memoryview) -> int | None:
        with blob_files.damage_named(Digest.of(b"")):
            if os.fstat(file.fileno()).st_ino == number:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return io.FileIO.readinto(file, buffer)

    monkeypatch.setattr(blob_files._BlobFile, "readinto", readinto)


def forbid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This user may not open this file; of root that can't be had by a mode."""
    real = os.open

    def opened(name: Any, *arguments: Any, **named: Any) -> int:
        if os.fspath(name) == os.fspath(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(name, *arguments, **named)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("which", ["layer", "manifest", "config"])
def test_what_the_disk_cannot_read_is_fetched_again(here: Node, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    image = here.store.pull(PYTHON)
    bad = {"layer": image.layers[0].digest, "manifest": image.manifest.digest, "config": image.id}[which]
    lose_sector(here.store.content.path(bad), monkeypatch)
    report = here.store.check()
    with pytest.raises(IntegrityError, match="the disk can't read it"):
        here.store.export_images([PYTHON], here.store.root.parent / "out.tar")
    assert [(each.kind, each.digest) for each in report.faults] == [(FaultKind.BLOB_UNREADABLE, bad)]
    assert "Input/output error" in report.faults[0].detail
    assert (report.damaged, report.unreadable) == (frozenset(), frozenset([bad]))
    # The number of a file that is deleted may be the next one's.
    with contextlib.ExitStack() as held:
        held.enter_context(here.store.content.path(bad).open("rb"))
        assert here.store.repair(report).fetched == (bad,)


@pytest.mark.parametrize("which", ["layer", "manifest", "config", "index"])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_what_the_disk_could_not_read_for_a_moment_is_not_called_damaged_and_left_alone(
    here: Node, tmp_path: Path, which: str, is_resumed: bool
) -> None:
    image = here.store.pull(PYTHON)
    digests = {"layer": image.layers[0].digest, "manifest": image.manifest.digest, "index": image.target.digest}
    bad = {**digests, "config": image.id}[which]
    before, options = present(here.store), CheckOptions(state=tmp_path / "check.json", resume=is_resumed)
    with pytest.MonkeyPatch.context() as patch:
        lose_sector(here.store.content.path(bad), patch)
        if is_resumed:
            token = CancelToken()
            stopping = replace(options, progress=lambda at: token.cancel() if at.blobs_done == at.blobs_total else None)
            with pytest.raises(OperationCancelledError):
                here.store.check(options=stopping, cancel=token)
        else:
            report = here.store.check(options=options)
            assert [(each.kind, each.digest) for each in report.faults] == [(FaultKind.BLOB_UNREADABLE, bad)]
    if is_resumed:
        assert here.store.check(options=options).faults == ()
        return
    asked = here.registry.ledger.count()
    mended = here.store.repair(report)
    assert (mended.fetched, mended.deleted, mended.failures) == ((), (), ())
    assert (here.registry.ledger.count(), present(here.store)) == (asked, before)


def test_what_no_image_needs_and_the_disk_could_not_read_goes_only_if_it_still_can_not(here: Node) -> None:
    lone = put(here.store, b"nobody's")
    with pytest.MonkeyPatch.context() as patch:
        lose_sector(here.store.content.path(lone), patch)
        report = here.store.check()
        assert report.unreadable == {lone}
    assert here.store.repair(report).deleted == ()
    with pytest.MonkeyPatch.context() as patch:
        lose_sector(here.store.content.path(lone), patch)
        with here.store.hold([lone]):
            ((subject, reason),) = here.store.repair(report).failures
        assert (subject, reason.partition(",")[0]) == (str(lone), "can't be read")
        assert here.store.repair(report).deleted == (lone,)


@pytest.mark.parametrize("which", ["layer", "manifest", "config", "index"])
def test_what_this_user_may_not_read_ends_a_check_and_a_repair_keeps_it(here: Node, which: str) -> None:
    image = here.store.pull(PYTHON)
    digests = {"layer": image.layers[0].digest, "manifest": image.manifest.digest, "index": image.target.digest}
    bad = {**digests, "config": image.id}[which]
    lone, before = put(here.store, b"nobody's"), present(here.store)
    report = CheckReport(tuple(Fault(FaultKind.BLOB_UNREADABLE, str(each), "", each) for each in (bad, lone)), 0, 0, 0)
    with pytest.MonkeyPatch.context() as patch:
        for each in (bad, lone):
            forbid(here.store.content.path(each), patch)
        with pytest.raises(StoreError, match="can't open: Permission denied"):
            here.store.check()
        mended = here.store.repair(report)
    assert (mended.fetched, mended.deleted) == ((), ())
    assert len(mended.failures) == 2
    assert all("can't open: Permission denied" in reason for _, reason in mended.failures)
    assert present(here.store) == {*before, lone}


@pytest.mark.parametrize("which", ["layer", "manifest", "config"])
def test_what_was_repaired_since_the_check_is_left_alone(
    here: Node, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    image = here.store.pull(PYTHON)
    bad = {"layer": image.layers[0].digest, "manifest": image.manifest.digest, "config": image.id}[which]
    whole = here.store.content.path(bad).read_bytes()
    spoil(here.store, bad)
    report = here.store.check()
    here.store.content.delete(bad)
    put(here.store, whole)
    before = here.registry.ledger.count()
    repaired = here.store.repair(report)
    assert (repaired.fetched, repaired.deleted, repaired.failures) == ((), (), ())
    assert here.registry.ledger.count() == before
    assert here.store.content.path(bad).read_bytes() == whole


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_store_made_next_to_content_keeps_it_for_a_day(
    here: Node, caplog: pytest.LogCaptureFixture, is_empty: bool
) -> None:
    here.store.pull(PYTHON)
    blobs, root = present(here.store), here.store.root
    here.store.close()
    lose_database(root, leaving=b"" if is_empty else None)
    with pytest.raises(StoreCorruptError, match="the database is gone"):
        ImageStore(root, create=False)
    with ImageStore(root) as again:
        assert len(list(again.metadata.leases.find())) == 1
        assert f"made a database next to {len(blobs)} blobs" in caplog.text
        again.collect_garbage()
        assert present(again) == blobs
    with ImageStore(root, clock=lambda: time.time() + 2 * DAY) as later:
        later.collect_garbage()
        assert present(later) == set()


def leave_database_without_tables(root: Path) -> None:
    """As who made it leaves it when the disk is full, or when killed."""
    lose_database(root, leaving=None)
    with contextlib.closing(sqlite3.connect(root / "metadata.db")) as db:
        db.execute("PRAGMA journal_mode = WAL")
    assert (root / "metadata.db").stat().st_size


@pytest.mark.parametrize("is_making", [True, False])
def test_content_is_kept_for_a_day_too_where_the_database_was_half_made(here: Node, is_making: bool) -> None:
    here.store.pull(PYTHON)
    blobs, root = present(here.store), here.store.root
    here.store.close()
    leave_database_without_tables(root)
    with ImageStore(root, create=is_making) as again:
        again.collect_garbage()
        assert present(again) == blobs


def test_a_rebuild_takes_a_database_without_tables_for_none(here: Node) -> None:
    here.store.pull(PYTHON)
    blobs, root = present(here.store), here.store.root
    here.store.close()
    leave_database_without_tables(root)
    report = rebuild(root)
    assert (report.was_whole, set(report.found), bool(report.found_lease)) == (False, blobs, True)


def test_what_another_process_brought_into_a_new_store_is_not_taken_for_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root, make = tmp_path / "store", SqliteMetadataStore

    def slowly(*given: object, **named: object) -> object:
        """Between the look for a database and the opening of it another process makes it, and pulls."""
        monkeypatch.undo()
        with ImageStore(root) as other:
            data, cancel = b"from the other", CancelToken()
            with other.content.writer("x", expected=Digest.of(data), total=len(data), cancel=cancel) as writer:
                writer.write(data)
                writer.commit()
        return make(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("imagestore.store.adapters.SqliteMetadataStore", slowly)
    with ImageStore(root) as store:
        assert (list(store.metadata.leases.find()), "next to" in caplog.text) == ([], False)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_rebuild_without_a_copy_keeps_content_for_a_day(here: Node, is_empty: bool) -> None:
    here.store.pull(PYTHON)
    blobs, root = present(here.store), here.store.root
    here.store.close()
    lose_database(root, leaving=b"" if is_empty else None)
    report = rebuild(root)
    assert (report.was_whole, set(report.found), bool(report.found_lease)) == (False, blobs, True)
    with ImageStore(root) as again:
        again.collect_garbage()
        assert present(again) == blobs


def test_a_database_of_no_bytes_is_rebuilt_from_a_copy(here: Node) -> None:
    record = here.store.pull(PYTHON).record
    root = here.store.root
    here.store.close()
    for name in ("metadata.db-wal", "metadata.db-shm"):
        (root / name).unlink(missing_ok=True)
    (root / "metadata.db").write_bytes(b"")
    report = rebuild(root)
    assert [each.reference for each in report.restored] == [record.reference]
    assert report.unnamed == ()


def lose_database(root: Path, *, leaving: bytes | None) -> None:
    """The database and its copies are gone; or something is left of the first."""
    for name in ("metadata.db", "metadata.db-wal", "metadata.db-shm"):
        (root / name).unlink(missing_ok=True)
    shutil.rmtree(root / "copies")
    if leaving is not None:
        (root / "metadata.db").write_bytes(leaving)


def test_what_was_fetched_again_and_can_not_be_read_is_not_repaired(
    here: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report of "fetched" would make an operator trust a disk that goes on damaging content."""
    bad = here.store.pull(PYTHON).layers[0].digest
    spoil(here.store, bad)
    report = here.store.check()
    make_unreadable(here.store, bad, monkeypatch)
    repaired = here.store.repair(report)
    assert repaired.fetched == ()
    ((subject, reason),) = repaired.failures
    assert subject.startswith(PYTHON)
    assert "still not right" in reason


def test_a_record_that_holds_what_its_index_does_not_list_can_not_be_repaired(here: Node) -> None:
    record = here.store.pull(PYTHON).record
    foreign = Digest.of(b"in no index")
    here.store.metadata.images.put(replace(record, roots=(*record.roots, foreign)), {})
    report = here.store.check()
    ((kind, detail),) = [(each.kind, each.detail) for each in report.faults]
    assert kind is FaultKind.RECORD_WRONG
    assert str(foreign) in detail
    ((subject, reason),) = here.store.repair(report).failures
    assert subject.startswith(PYTHON)
    assert str(foreign) in reason


def test_a_repair_that_is_cancelled_ends(here: Node) -> None:
    layers = here.store.pull(PYTHON).layers
    for layer in layers:
        spoil(here.store, layer.digest)
    report, token = here.store.check(), CancelToken()
    with pytest.raises(OperationCancelledError):
        here.store.repair(report, observer=lambda _: token.cancel(), cancel=token)
    assert len(here.store.check().faults) == len(layers)


def test_a_check_that_can_note_nothing_goes_on(here: Node, tmp_path: Path) -> None:
    here.store.pull(PYTHON)
    token = CancelToken()
    options = CheckOptions(state=tmp_path / "no such folder" / "state", progress=lambda _: token.cancel())
    with pytest.raises(OperationCancelledError):
        here.store.check(options=options, cancel=token)


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


def a_day_passes(here: Node) -> Observer:
    """A clock that jumps, or a machine that sleeps: another process finds the lease of running work at its end."""

    def hear(event: Event) -> None:
        if isinstance(event, BlobDone):
            with ImageStore(here.store.root, clock=lambda: time.time() + 2 * DAY) as other:
                other.collect_garbage()

    return hear


def test_a_pull_whose_lease_ended_early_records_nothing_that_is_gone(here: Node) -> None:
    with pytest.raises(StoreError, match="lease"):
        here.store.pull(PYTHON, observer=a_day_passes(here))
    assert list(here.store.list()) == []
    image = here.store.pull(PYTHON)
    assert all(path.exists() for path in image.layer_paths)


def test_an_import_whose_lease_ended_early_records_nothing_that_is_gone(here: Node, tmp_path: Path) -> None:
    archive = making.write(tmp_path / "whole.tar", making.layout_files({PYTHON: python_image()}))
    with pytest.raises(StoreError, match="lease"):
        here.store.import_images(archive, observer=a_day_passes(here))
    assert list(here.store.list()) == []


def test_a_held_lease_is_renewed_while_its_block_runs(here: Node) -> None:
    with leases.held(here.store.metadata, purpose="test", renew_seconds=0.01) as held, leases.renewed(held):
        (before,) = here.store.metadata.leases.find()
        until(lambda: here.store.metadata.leases.find()[0].expires_at != before.expires_at, "the lease is renewed")
    assert [thread.name for thread in threading.enumerate() if thread.name == "imagestore-renew"] == []


def test_garbage_goes_before_images_when_the_disk_is_full(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    image = here.store.pull(PYTHON)
    put(here.store, bytes(1_000_000))
    real = os.statvfs(here.store.root)

    def nearly_full(path: object) -> os.statvfs_result:
        """A disk of 2 MB with nothing but this store's blobs on it."""
        used = sum(info.size for info in here.store.content.walk())
        free = 2_000_000 - used
        return os.statvfs_result((1, 1, 2_000_000, free, free, *real[5:]))

    monkeypatch.setattr(os, "statvfs", nearly_full)
    half_full = EvictionPolicy(high_percent=40, low_percent=20)
    assert here.store.usage().disk.used_bytes > 1_000_000
    assert here.store.evict(half_full).evicted == ()
    assert here.store.evict(half_full, dry_run=True).evicted == ()
    assert here.store.get(PYTHON).id == image.id
    tight = EvictionPolicy(high_percent=0, low_percent=0)
    assert [each.record.reference for each in here.store.evict(tight).evicted] == [PYTHON]


def test_what_killed_processes_left_next_to_the_database_is_removed_when_it_is_old(here: Node) -> None:
    old, young = here.store.root / ".check.json.0123456789ab.tmp", here.store.root / ".check.json.0123456789ac.tmp"
    others = [
        here.store.root / name
        for name in (
            "metadata.db.rebuilt",
            ".last-change.json.0123456789ab.tmp",
            f"metadata.db.{'0' * 16}.tmp",
            "check.json.77.tmp",
        )
    ]
    own = here.store.root / "notes.tmp"
    for path in (old, young, own, *others):
        path.write_text("x")
        if path is not young:
            os.utime(path, (1, 1))
    here.store.collect_garbage(dry_run=True)
    assert old.exists()
    here.store.collect_garbage()
    assert [path.exists() for path in (old, young, own, *others)] == [False, True, True, False, False, False, False]


def test_a_rebuilt_record_keeps_what_its_labels_name(here: Node) -> None:
    manifest = here.store.pull(OTHER, runtime_handler="kata").manifest.digest
    image = here.store.pull(PYTHON, runtime_handler=HYPERV)
    labels = {"containerd.io/gc.ref.content.other": str(manifest)}
    here.store.metadata.images.put(replace(image.record, labels=labels), {})
    here.store.remove(OTHER, runtime_handler="kata", collect=True)
    before = present(here.store)
    assert manifest in before
    here.store.close()
    damage_database(here.store.root)
    rebuild(here.store.root)
    with ImageStore(here.store.root) as store:
        store.collect_garbage()
        assert present(store) == before


def test_a_rebuild_brings_labels_and_lasting_leases_back(here: Node) -> None:
    image = here.store.pull(PYTHON, runtime_handler=HYPERV)
    here.store.remove(PYTHON)
    kept, rooted, gone = (put(here.store, name) for name in (b"leased", b"rooted", b"gone"))
    metadata = here.store.metadata
    metadata.leases.create("by-hand", lifetime_seconds=math.inf, labels={"who": "me"})
    metadata.leases.add_content("by-hand", [kept, gone, image.manifest.digest])
    metadata.leases.remove_content("by-hand", [gone])
    metadata.leases.create("released", lifetime_seconds=math.inf)
    metadata.leases.add_content("released", [gone])
    metadata.leases.delete("released")
    metadata.leases.create("over", lifetime_seconds=-1.0)
    metadata.leases.create("default/theirs", lifetime_seconds=math.inf, namespace="default")
    metadata.graph.label_content(rooted, {"containerd.io/gc.root": "by hand", "note": "x"})
    metadata.graph.label_content(gone, {"containerd.io/gc.root": "for a while"})
    metadata.graph.label_content(gone, {})
    before = {kept, rooted, image.manifest.digest, image.id, *(part.digest for part in image.layers)}
    everything = present(here.store)
    here.store.close()
    damage_database(here.store.root)
    report = rebuild(here.store.root)
    with ImageStore(here.store.root) as store:
        store.collect_garbage()
        assert present(store) == everything, "nothing goes before somebody has looked, or a day is over"
        assert store.metadata.graph.content_labels(rooted) == {"containerd.io/gc.root": "by hand", "note": "x"}
        assert store.metadata.leases.delete(report.found_lease)
        assert set(store.collect_garbage().digests) == everything - before
        back, theirs = store.metadata.leases.find()
        assert (back.expires_at, back.labels, back.namespace) == (math.inf, {"who": "me"}, HOME)
        assert (theirs.namespace, theirs.name) == ("default", "theirs")


def test_a_process_whose_database_was_replaced_writes_no_more(here: Node, tmp_path: Path) -> None:
    here.store.pull(PYTHON)
    here.store.backup(tmp_path / "other.db")
    os.replace(tmp_path / "other.db", here.store.root / "metadata.db")
    for change in (here.store.remove, here.store.pin, partial(here.store.remove, collect=True)):
        with pytest.raises(StoreError, match="was replaced while this process had it open"):
            change(PYTHON)


def test_a_list_or_a_mark_never_reads_another_database_than_the_one_that_is_open(here: Node, tmp_path: Path) -> None:
    """They have a connection of their own, opened by name; and nothing makes an empty one where it is gone."""
    here.store.pull(PYTHON)
    here.store.backup(tmp_path / "other.db")
    assert here.store.metadata.generation() is not None
    database = here.store.root / "metadata.db"
    database.rename(tmp_path / "gone.db")
    for work in (here.store.metadata.images.find, lambda: here.store.metadata.graph.garbage([])):
        with pytest.raises(StoreError, match="No such file"):
            work()
    assert not database.exists()
    assert here.store.metadata.generation() is None, "no answer that was kept stands any more"
    assert not here.store.metadata.is_outdated(), "there is nothing else to open"
    os.replace(tmp_path / "other.db", database)
    assert here.store.metadata.generation() is None
    assert here.store.metadata.is_outdated()
    for work in (here.store.metadata.images.find, lambda: here.store.metadata.graph.garbage([])):
        with pytest.raises(StoreError, match="was replaced while this process had it open"):
            work()


def test_an_ingest_of_a_clock_that_was_set_back_goes_too(here: Node) -> None:
    with here.store.content.try_writer("abandoned", algorithm="sha256", total=9) as writer:
        writer.write(b"part")
    (data,) = here.store.root.glob("content/ingest/*/data")
    os.utime(data, (time.time() + 30 * DAY,) * 2)
    assert here.store.collect_garbage().ingests == ("abandoned",)


def test_another_programs_database_is_not_rebuilt_over(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "metadata.db")) as database:
        database.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreCorruptError, match="another program's"):
        rebuild(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["metadata.db"]
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / "metadata-1.db").write_bytes(b"a copy makes it ours")
    (tmp_path / "content" / "blobs" / "sha256").mkdir(parents=True)
    (tmp_path / "content" / "blobs" / "sha256" / ("0" * 64)).touch()
    assert rebuild(tmp_path).kept_as == tmp_path / "metadata.db.damaged-1"


def test_a_renewed_lease_has_no_label_that_says_otherwise(here: Node) -> None:
    labels = {"containerd.io/gc.expire": "2999-01-01T00:00:00Z", "who": "me"}
    here.store.metadata.leases.create("l", lifetime_seconds=1.0, labels=labels)
    here.store.metadata.leases.renew("l", lifetime_seconds=60.0)
    (lease_,) = here.store.metadata.leases.find()
    assert lease_.labels == {"who": "me"}
    assert lease_.expires_at < time.time() + 61


def test_only_one_process_rebuilds(here: Node) -> None:
    here.store.pull(PYTHON)
    here.store.close()
    damage_database(here.store.root)
    with FileLock(here.store.root / "locks" / "rebuild") as lock:
        assert lock.try_acquire()
        with pytest.raises(StoreBusyError, match="another process is rebuilding"):
            rebuild(here.store.root)
    assert len(rebuild(here.store.root).restored) == 1
