"""Content that is away, or can't be read for a moment, costs no record in a rebuild."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from imagestore import Digest, ImageStore
from imagestore.errors import StoreError
from imagestore.store.maintenance.rebuild import rebuild, restore_backup
from imagestore.testing import build_index
from tests.support.node import PYTHON, node, python_image
from tests.unit.store.test_upkeep import OTHER

DAMAGED = b"garbage" * 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with two images, a label and a lasting lease, whose database was overwritten."""
    root = tmp_path / "store"
    with node(root, {PYTHON: python_image(), OTHER: build_index(["linux/amd64"], seed="other")}) as here:
        image = here.store.pull(PYTHON, runtime_handler="kata")
        here.store.pull(OTHER, runtime_handler="kata")
        here.store.metadata.graph.label_content(image.id, {"note": "x"})
        here.store.metadata.leases.create("lasting", lifetime_seconds=1e9, content=[image.id])
        here.store.metadata.keep_copy(at_once=True)
    spoil(root)
    return root


def spoil(root: Path) -> None:
    for path in root.glob("metadata.db*"):
        path.unlink()
    (root / "metadata.db").write_bytes(DAMAGED)


def known(root: Path) -> tuple[set[str], set[str]]:
    """References, and lasting leases."""
    with ImageStore(root) as store:
        leases = {lease.id for lease in store.metadata.leases.find() if lease.expires_at > 1e9}
        return {image.reference for image in store.list()}, leases & {"lasting"}


def blobs(root: Path) -> set[str]:
    return {path.name for path in (root / "content" / "blobs").glob("*/*")}


@pytest.mark.parametrize("left", ["nothing", "folders"])
def test_a_rebuild_without_content_changes_nothing(root: Path, left: str) -> None:
    (root / "content").rename(root / "away")
    if left == "folders":
        (root / "content" / "blobs" / "sha256").mkdir(parents=True)
    with pytest.raises(StoreError, match="no content") as caught:
        rebuild(root)
    assert "--force" in caught.value.hint
    assert (root / "metadata.db").read_bytes() == DAMAGED
    if left == "folders":
        (root / "content" / "blobs" / "sha256").rmdir()
        (root / "content" / "blobs").rmdir()
        (root / "content").rmdir()
    (root / "away").rename(root / "content")
    assert len(rebuild(root).restored) == 2
    assert known(root) == ({PYTHON, OTHER}, {"lasting"})


def test_a_damaged_database_without_copies_and_content_is_kept_unless_forced(root: Path) -> None:
    shutil.rmtree(root / "copies")
    (root / "content").rename(root / "away")
    with pytest.raises(StoreError, match="no content"):
        rebuild(root)
    assert rebuild(root, is_forced=True).kept_as == root / "metadata.db.damaged-1"


def test_a_forced_rebuild_without_content_keeps_the_copy_for_when_it_is_back(root: Path) -> None:
    (root / "content").rename(root / "away")
    report = rebuild(root, is_forced=True)
    assert (report.restored, len(report.skipped), report.is_complete) == ((), 2, False)
    kept = report.copy
    assert kept is not None
    assert kept.name.endswith(".incomplete.db")
    for folder in ("content/blobs/sha256", "content/blobs", "content/ingest", "content"):
        (root / folder).rmdir()
    (root / "away").rename(root / "content")
    before = blobs(root)
    with ImageStore(root) as store:
        store.metadata.leases.create("more", lifetime_seconds=1e9)
        for number in range(4):
            store.metadata.graph.label_content(Digest.of(b"x"), {"number": str(number)})
            store.metadata.keep_copy(at_once=True)
        store.collect_garbage()
    assert blobs(root) == before
    restore_backup(root, kept)
    assert known(root) == ({PYTHON, OTHER}, {"lasting"})
    with ImageStore(root) as store:
        assert store.check().faults == ()
        assert store.metadata.graph.content_labels(next(store.list(name=PYTHON)).id) == {"note": "x"}


@pytest.mark.parametrize("how", ["collect_garbage", "delete"])
def test_what_comes_back_late_is_kept_for_a_day(root: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of content that was away only its lost documents say what belongs to it; so all is kept."""
    before, others, kept = blobs(root), build_index(["linux/amd64"], seed="third"), root / "kept"
    kept.mkdir()
    manifest = python_image().manifests[0]
    for each in (manifest.descriptor, manifest.config, *manifest.layers):
        if each.digest.encoded in before:
            (root / "content" / "blobs" / "sha256" / each.digest.encoded).rename(kept / each.digest.encoded)
    report = rebuild(root)
    assert [record.reference for record, _ in report.skipped] == [PYTHON]
    with node(root, {"registry.example/third:1": others}) as here:
        here.store.pull("registry.example/third:1", runtime_handler="kata")
        for path in list(kept.iterdir()):
            path.rename(root / "content" / "blobs" / "sha256" / path.name)
        if how == "delete":
            assert here.store.remove("registry.example/third:1", runtime_handler="kata", collect=True).bytes_freed == 0
        else:
            assert here.store.collect_garbage(dry_run=True).digests == ()
            assert here.store.collect_garbage().digests == ()
    assert report.found_lease in caplog.text
    assert before <= blobs(root)


NUMBERS = {"open": errno.EIO, "forbidden": errno.EACCES}


def unreadable(monkeypatch: pytest.MonkeyPatch, root: Path, name: str, how: str) -> None:
    """A blob that the disk can't open, or can't read."""
    real = os.open

    def opened(path: Any, *arguments: Any, **named: Any) -> int:
        if not str(path).endswith(name):
            return real(path, *arguments, **named)
        if how in NUMBERS:
            raise OSError(NUMBERS[how], os.strerror(NUMBERS[how]))
        return real("/proc/self/mem", os.O_RDONLY)  # whose first page can't be read: EIO

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("how", ["open", "read", "forbidden"])
@pytest.mark.parametrize("which", ["index", "manifest"])
def test_content_that_can_not_be_read_for_a_moment_ends_the_rebuild(
    root: Path, monkeypatch: pytest.MonkeyPatch, how: str, which: str
) -> None:
    image = python_image()
    names = {
        "index": image.target.digest.encoded,
        "manifest": image.manifests[0].descriptor.digest.encoded,
    }
    with monkeypatch.context() as patch:
        unreadable(patch, root, names[which], how)
        with pytest.raises(StoreError, match=r"can't (read it|open: Permission).*nothing was rebuilt") as caught:
            rebuild(root)
        assert "--force" in caught.value.hint
    assert (root / "metadata.db").read_bytes() == DAMAGED
    assert not list(root.glob("metadata.db.*"))
    assert len(rebuild(root).restored) == 2
    assert known(root) == ({PYTHON, OTHER}, {"lasting"})


@pytest.mark.parametrize("how", ["open", "read", "forbidden"])
def test_a_forced_rebuild_keeps_records_whose_content_may_be_readable_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    before = blobs(root)
    with monkeypatch.context() as patch:
        unreadable(patch, root, python_image().target.digest.encoded, how)
        report = rebuild(root, is_forced=True)
    assert ({record.reference for record in report.restored}, report.skipped) == ({PYTHON, OTHER}, ())
    with ImageStore(root) as store:
        assert store.metadata.leases.delete(report.found_lease)
        store.collect_garbage()
        assert store.check().faults == ()
    assert blobs(root) == before


def test_what_was_removed_and_collected_since_the_copy_does_not_come_back(root: Path) -> None:
    rebuild(root)
    with ImageStore(root) as store:
        store.metadata.leases.delete(next(each.id for each in store.metadata.leases.find() if each.id != "lasting"))
        store.metadata.keep_copy(at_once=True)
        store.remove(OTHER, runtime_handler="kata", collect=True)
    spoil(root)
    report = rebuild(root)
    assert [record.reference for record, _ in report.skipped] == [OTHER]
    assert known(root) == ({PYTHON}, {"lasting"})


def test_labels_of_content_that_is_gone_are_forgotten(root: Path) -> None:
    rebuild(root)
    gone, named = Digest.of(b"gone"), Digest.of(b"named")
    with ImageStore(root) as store:
        store.metadata.graph.label_content(gone, {"containerd.io/gc.ref.content": str(named)})
        store.metadata.keep_copy(at_once=True)
    spoil(root)
    rebuild(root)
    with ImageStore(root) as store:
        assert store.metadata.graph.content_labels(gone) == {}
        assert store.metadata.graph.content_labels(next(store.list(name=PYTHON)).id) == {"note": "x"}
