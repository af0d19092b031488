"""Content that is away, or can't be read for a moment, costs no record in a rebuild."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from imagestore import ImageStore
from imagestore.errors import StoreError
from imagestore.metadata.sqlite import journal_lines
from imagestore.metadata.sqlite.journal import RecordJournal
from imagestore.store.maintenance.rebuild import rebuild
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


def test_a_damaged_database_without_journal_and_content_is_kept_unless_forced(root: Path) -> None:
    (root / "records.jsonl").unlink()
    (root / "content").rename(root / "away")
    with pytest.raises(StoreError, match="no content"):
        rebuild(root)
    assert rebuild(root, is_forced=True).kept_as == root / "metadata.db.damaged-1"


def test_a_forced_rebuild_without_content_is_completed_by_the_next(root: Path) -> None:
    (root / "content").rename(root / "away")
    report = rebuild(root, is_forced=True)
    assert (report.restored, len(report.skipped), report.is_complete) == ((), 2, False)
    for folder in ("content/blobs/sha256", "content/blobs", "content/ingest", "content"):
        (root / folder).rmdir()
    (root / "away").rename(root / "content")
    report = rebuild(root)
    assert report.was_whole
    assert (report.found, report.found_lease) == ((), "")
    assert {record.reference for record in report.restored} == {PYTHON, OTHER}
    assert report.is_complete
    assert known(root) == ({PYTHON, OTHER}, {"lasting"})
    before = blobs(root)
    with ImageStore(root) as store:
        assert store.check().faults == ()
        store.collect_garbage()
        assert store.metadata.graph.content_labels(next(store.list(name=PYTHON)).id) == {"note": "x"}
    assert blobs(root) == before
    again = rebuild(root)
    assert (again.was_whole, again.restored, again.labelled, again.leases) == (True, (), 0, ())


@pytest.mark.parametrize("how", ["collect_garbage", "delete"])
@pytest.mark.parametrize("away", ["all", "but layers", "one image"])
def test_what_comes_back_late_is_kept_until_the_next_rebuild_restores_it(
    root: Path, how: str, away: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of content that was away only its lost documents say what belongs to it; so all is kept."""
    before, others, kept = blobs(root), build_index(["linux/amd64"], seed="third"), root / "kept"
    kept.mkdir()
    image = python_image()
    if away == "all":
        going = before
    elif away == "but layers":
        going = {image.target.digest.encoded, *(each.descriptor.digest.encoded for each in image.manifests)}
    else:
        manifest = image.manifests[0]
        parts = [manifest.descriptor, manifest.config, *manifest.layers]
        going = {image.target.digest.encoded, *(each.digest.encoded for each in parts)}
    for name in going & before:
        (root / "content" / "blobs" / "sha256" / name).rename(kept / name)
    report = rebuild(root, is_forced=True)
    assert PYTHON in {record.reference for record, _ in report.skipped}
    with node(root, {"registry.example/third:1": others}) as here:
        here.store.pull("registry.example/third:1", runtime_handler="kata")
        for path in list(kept.iterdir()):
            path.rename(root / "content" / "blobs" / "sha256" / path.name)
        if how == "delete":
            assert here.store.delete("registry.example/third:1", runtime_handler="kata").bytes_freed == 0
        else:
            assert here.store.collect_garbage(dry_run=True).digests == ()
            assert here.store.collect_garbage().digests == ()
    assert report.found_lease in caplog.text
    assert before <= blobs(root)
    again = rebuild(root)
    assert (again.is_complete, again.found_lease) == (True, "")
    assert {PYTHON, OTHER} <= known(root)[0]
    with ImageStore(root) as store:
        store.remove("registry.example/third:1", runtime_handler="kata")
        store.collect_garbage()
    assert blobs(root) == before


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
@pytest.mark.parametrize("which", ["index", "manifest", "labelled"])
def test_content_that_can_not_be_read_for_a_moment_ends_the_rebuild(
    root: Path, monkeypatch: pytest.MonkeyPatch, how: str, which: str
) -> None:
    image = python_image()
    names = {
        "index": image.target.digest.encoded,
        "manifest": image.manifests[0].descriptor.digest.encoded,
        "labelled": image.manifests[0].config.digest.encoded,
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
def test_a_forced_rebuild_keeps_all_content_and_the_next_adds_what_is_readable_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    before = blobs(root)
    with monkeypatch.context() as patch:
        unreadable(patch, root, python_image().target.digest.encoded, how)
        report = rebuild(root, is_forced=True)
    assert [record.reference for record in report.restored] == [OTHER]
    assert [record.reference for record, _ in report.skipped] == [PYTHON]
    with ImageStore(root) as store:
        store.collect_garbage()
    assert blobs(root) == before
    assert [record.reference for record in rebuild(root).restored] == [PYTHON]
    assert known(root) == ({PYTHON, OTHER}, {"lasting"})


def test_a_line_of_the_journal_that_can_not_be_read_keeps_all_content(root: Path) -> None:
    """It may have been the only one about an image."""
    journal = root / "records.jsonl"
    journal.write_bytes(journal.read_bytes().replace(OTHER.encode(), b"\xff", 1))
    before = blobs(root)
    report = rebuild(root)
    assert (len(report.restored), report.unreadable, report.is_complete) == (1, 1, False)
    with ImageStore(root) as store:
        store.collect_garbage()
    assert blobs(root) == before


def test_a_record_that_came_back_in_an_older_form_is_reported_and_its_content_kept(root: Path) -> None:
    spoilt = build_index(["linux/amd64"], seed="newer")
    rebuild(root)
    with node(root, {OTHER: spoilt}) as here:
        newer = here.store.pull(OTHER, runtime_handler="kata")
        layer = newer.layers[0].digest
    spoil(root)
    (root / "content" / "blobs" / "sha256" / newer.manifest.digest.encoded).unlink()
    report = rebuild(root)
    assert {record.reference for record in report.restored} == {PYTHON, OTHER}
    assert [record.manifest.digest for record, _ in report.skipped] == [newer.manifest.digest]
    assert layer in report.found


def test_a_whole_database_keeps_what_the_journal_does_not_know_to_be_removed(root: Path) -> None:
    """What was removed before stays removed, and what is there stays as it is."""
    rebuild(root)
    with ImageStore(root) as store:
        store.remove(OTHER, runtime_handler="kata")
        store.pin(PYTHON, runtime_handler="kata")
    assert rebuild(root).restored == ()
    with ImageStore(root) as store:
        assert [(image.reference, image.record.is_pinned) for image in store.list()] == [(PYTHON, True)]


def test_lines_of_a_transaction_that_died_are_not_added_to_a_whole_database(root: Path) -> None:
    rebuild(root)
    with ImageStore(root) as store:
        (record,) = [image.record for image in store.list(name=OTHER)]
        store.remove(OTHER, runtime_handler="kata")
        number = RecordJournal.of_database(root / "metadata.db").committed() + 1
        RecordJournal.of_database(root / "metadata.db").append([journal_lines.put(number, record)])
    assert rebuild(root).restored == ()
