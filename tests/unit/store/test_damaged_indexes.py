"""A database whose tables are whole and whose indexes lack rows, as a torn copy has, and an older one in its place."""

from __future__ import annotations

import contextlib
import math
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imagestore import EvictionPolicy, ImageStore
from imagestore.errors import StoreCorruptError
from imagestore.metadata.sqlite.last_change import LastChange, LastChangeNote
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.store.maintenance.check import FaultKind
from imagestore.store.maintenance.rebuild import rebuild
from imagestore.testing import build_index
from tests.support.embedded import copy_records, database_of
from tests.support.node import PYTHON, node, python_image
from tests.unit.store.test_upkeep import OTHER

INDEXES = [
    "image_by_id",
    "image_root_by_digest",
    "edge_by_child",
    "lease_content_by_digest",
    "label_edge_by_child",
    "named_image_root_by_digest",
    "namespace_content_by_digest",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with something in every table that has an index."""
    root = tmp_path / "store"
    with node(root, {PYTHON: python_image(), OTHER: build_index(["linux/amd64"], seed="other")}) as here:
        image = here.store.pull(PYTHON, runtime_handler="kata")
        here.store.pull(OTHER, runtime_handler="kata")
        labels = {"containerd.io/gc.root": "yes", "containerd.io/gc.ref.content.x": str(image.manifest.digest)}
        here.store.metadata.graph.label_content(image.id, labels)
        here.store.metadata.leases.create("lasting", lifetime_seconds=1e9, content=[image.id])
    with contextlib.closing(sqlite3.connect(root / "metadata.db")) as database, database:
        digest = str(image.id)
        named = "INSERT INTO named_image VALUES ('k8s.io', 'n', 'm', ?, 1, '{}', '{}', 1, 1, 9e9)"
        database.execute(named, (digest,))
        database.execute("INSERT INTO named_image_root VALUES ('k8s.io', 'n', ?, 0)", (digest,))
        database.execute("INSERT INTO namespace_content VALUES ('other', ?, 1, '{}', 1, 1, 1)", (digest,))
    return root


def forget(root: Path, index: str) -> None:
    """Let an index lack every row of its table: its page becomes an empty one."""
    with contextlib.closing(sqlite3.connect(root / "metadata.db", isolation_level=None)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        query = "SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size WHERE name = ?"
        ((page, size),) = database.execute(query, (index,)).fetchall()
    with open(root / "metadata.db", "r+b") as file:
        file.seek((page - 1) * size)
        # An index's leaf without cells (https://www.sqlite.org/fileformat.html, section 1.6).
        file.write(bytes([10, 0, 0, 0, 0, *size.to_bytes(2, "big"), 0]).ljust(size, b"\0"))


def store_id(root: Path) -> str:
    with ImageStore(root) as store:
        return store.id


def blobs(root: Path) -> set[str]:
    return {path.name for path in (root / "content" / "blobs").glob("*/*")}


@pytest.mark.parametrize("index", INDEXES)
def test_a_check_finds_an_index_that_lacks_rows_and_a_rebuild_makes_it_anew(root: Path, index: str) -> None:
    forget(root, index)
    with ImageStore(root) as store:
        faults = store.check().faults
    assert {fault.kind for fault in faults} == {FaultKind.DATABASE_DAMAGED}
    assert any(index in fault.detail for fault in faults)
    report = rebuild(root)
    assert (report.reindexed, report.was_whole, report.kept_as, report.restored) == (True, False, None, ())
    with ImageStore(root) as store:
        assert store.check().faults == ()
        assert store.metadata.named_images.get("k8s.io", "n") is not None
        assert "lasting" in {lease.id for lease in store.metadata.leases.find()}
    assert rebuild(root).was_whole


@pytest.mark.parametrize("index", INDEXES)
def test_a_collection_believes_the_tables(root: Path, index: str) -> None:
    before = blobs(root)
    forget(root, index)
    with ImageStore(root) as store:
        store.collect_garbage()
    assert blobs(root) == before


def test_a_collection_believes_the_tables_where_every_index_lacks_rows(root: Path) -> None:
    before = blobs(root)
    for index in INDEXES:
        forget(root, index)
    with ImageStore(root) as store:
        assert not database_of(store).graph.keeps_nothing()
        store.collect_garbage()
    assert blobs(root) == before


@pytest.mark.parametrize("index", [each for each in INDEXES if each != "image_by_id"])
@pytest.mark.parametrize("how", ["remove", "evict"])
def test_what_frees_one_image_refuses_damaged_indexes_before_it_removes_any(root: Path, index: str, how: str) -> None:
    """It asks which others hold the content by indexes: one that lacks rows would lose what those need."""
    before = blobs(root)
    forget(root, index)
    with ImageStore(root, clock=lambda: time.time() + 60.0) as store:
        ways: dict[str, Callable[[], object]] = {
            "remove": lambda: store.remove(OTHER, collect=True),
            "evict": lambda: store.evict(EvictionPolicy(unused_seconds=1.0)),
        }
        with pytest.raises(StoreCorruptError, match=r"index.*nothing was removed") as caught:
            ways[how]()
        assert len(list(store.list())) == 2
    assert "check --rebuild" in caught.value.hint
    assert blobs(root) == before


@pytest.mark.parametrize("how", ["get", "remove", "remove and collect", "list"])
def test_an_image_that_its_index_lacks_is_not_said_to_be_missing(root: Path, how: str) -> None:
    with ImageStore(root) as store:
        image = next(store.list(name=OTHER))
    forget(root, "image_by_id")
    with ImageStore(root) as store:
        ways: dict[str, Callable[[str], object]] = {
            "get": store.get,
            "remove": store.remove,
            "remove and collect": lambda name: store.remove(name, collect=True),
            "list": lambda name: list(store.list(name=name)),
        }
        with pytest.raises(StoreCorruptError, match="index") as caught:
            ways[how](str(image.id))
    assert "check --rebuild" in caught.value.hint


@pytest.mark.parametrize("collect", [False, True])
def test_a_name_whose_image_the_index_of_ids_lacks_is_refused(root: Path, collect: bool) -> None:
    forget(root, "image_by_id")
    before = blobs(root)
    with ImageStore(root) as store:
        with pytest.raises(StoreCorruptError, match="index"):
            store.remove(OTHER, runtime_handler="kata", all_names=True, collect=collect)
        assert len(list(store.list())) == 2
    assert blobs(root) == before


def test_an_image_that_the_index_of_roots_lacks_is_not_said_to_be_missing(root: Path) -> None:
    with ImageStore(root) as store:
        manifest = next(store.list(name=OTHER)).manifest.digest
    forget(root, "image_root_by_digest")
    with ImageStore(root) as store, pytest.raises(StoreCorruptError, match="index"):
        store.get(str(manifest))


def test_rows_that_refer_to_nothing_are_damage(root: Path) -> None:
    copy_records(root)
    with contextlib.closing(sqlite3.connect(root / "metadata.db")) as database, database:
        database.execute("DELETE FROM image WHERE reference = ?", (OTHER,))
    with ImageStore(root) as store:
        assert any("refer to no image" in fault.detail for fault in store.check().faults)
    assert {record.reference for record in rebuild(root).restored} == {PYTHON, OTHER}


@pytest.fixture
def older(root: Path, tmp_path: Path) -> Path:
    """A store whose database was put back by cp from before its last pull."""
    with contextlib.closing(sqlite3.connect(root / "metadata.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(root / "metadata.db", tmp_path / "old.db")
    with node(root, {"registry.example/new:1": build_index(["linux/amd64"], seed="new")}) as here:
        here.store.pull("registry.example/new:1", runtime_handler="kata")
        here.store.remove(OTHER, runtime_handler="kata")
    for path in root.glob("metadata.db-*"):
        path.unlink()
    shutil.copy(tmp_path / "old.db", root / "metadata.db")
    return root


def test_an_older_database_is_noticed_before_it_does_harm(older: Path) -> None:
    before = blobs(older)
    with ImageStore(older) as store:
        assert {image.reference for image in store.list()} == {PYTHON, OTHER}
        assert any("older database" in fault.detail for fault in store.check().faults)
        with pytest.raises(StoreCorruptError, match="older database") as caught:
            store.collect_garbage()
        with pytest.raises(StoreCorruptError, match="older database"):
            store.pin(PYTHON, runtime_handler="kata")
        with pytest.raises(StoreCorruptError, match="older database"):
            store.remove(PYTHON)
    assert "check --rebuild" in caught.value.hint
    assert blobs(older) == before


@pytest.mark.parametrize("has_copies", [True, False])
def test_an_older_database_is_replaced_by_the_newest_that_is_known(older: Path, has_copies: bool) -> None:
    """By a copy, or by itself where that is older still; what neither has is kept until somebody has looked."""
    before = blobs(older)
    if not has_copies:
        shutil.rmtree(older / "copies")
    report = rebuild(older)
    assert report.kept_as == older / "metadata.db.damaged-1"
    assert {record.reference for record in report.restored} == {PYTHON, OTHER}
    assert len(report.unnamed) == 1, "the image that was pulled later"
    with ImageStore(older) as store:
        assert store.check().faults == ()
        store.pin(PYTHON, runtime_handler="kata")
        store.collect_garbage()
        assert blobs(older) == before
        assert store.metadata.leases.delete(report.found_lease)
        assert report.unnamed[0] in store.collect_garbage().digests


def test_another_stores_database_is_noticed(root: Path, tmp_path: Path) -> None:
    with ImageStore(tmp_path / "other") as store:
        store.metadata.leases.create("lasting", lifetime_seconds=1e9)
    (tmp_path / "other" / "metadata.db").replace(root / "metadata.db")
    before = blobs(root)
    with ImageStore(root) as store:
        assert any("another store's" in fault.detail for fault in store.check().faults)
        for change in (store.collect_garbage, lambda: store.metadata.leases.delete("lasting")):
            with pytest.raises(StoreCorruptError, match="another store's"):
                change()
    assert blobs(root) == before


def test_a_change_of_another_process_makes_no_older_database(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is committed and noted between the moment a collection begins and its look at the note."""
    read = LastChangeNote.read

    def other_was_faster(note: LastChangeNote) -> LastChange | None:
        monkeypatch.setattr(LastChangeNote, "read", read)
        with ImageStore(root) as other:
            other.remove(OTHER, runtime_handler="kata")
        return read(note)

    with ImageStore(root) as store:
        monkeypatch.setattr(LastChangeNote, "read", other_was_faster)
        store.collect_garbage()
        assert {image.reference for image in store.list()} == {PYTHON}


def test_a_commit_that_a_power_cut_may_undo_is_not_noted(root: Path) -> None:
    with contextlib.closing(SqliteMetadataStore(root / "metadata.db")) as metadata:
        noted = LastChangeNote(root / "metadata.db").read()
        with metadata.batch():
            metadata.images.pin([(PYTHON, "kata")], is_pinned=True)
    assert LastChangeNote(root / "metadata.db").read() == noted


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"store": "x", "number": 7}', b"[" * 5000, b'{"store": null}'])
def test_a_note_that_is_cut_off_says_nothing(root: Path, said: bytes) -> None:
    (root / "last-change.json").write_bytes(said)
    with ImageStore(root) as store:
        store.collect_garbage()
        store.remove(OTHER, runtime_handler="kata")
    noted = LastChangeNote(root / "metadata.db").read()
    assert noted is not None
    assert noted.store == store_id(root)


@pytest.mark.parametrize("what", ["pulled", "tagged", "labelled", "leased"])
def test_a_database_older_by_one_change_is_noticed(root: Path, tmp_path: Path, what: str) -> None:
    """Who ends well notes the last change."""
    with node(root, {"registry.example/new:1": build_index(["linux/amd64"], seed="new")}) as here:
        target = next(iter(here.store.list())).id
        with contextlib.closing(sqlite3.connect(root / "metadata.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(root / "metadata.db", tmp_path / "old.db")
        if what == "pulled":
            here.store.pull("registry.example/new:1", runtime_handler="kata")
        elif what == "tagged":
            here.store.tag(PYTHON, "registry.example/more:1")
        elif what == "labelled":
            here.store.metadata.graph.label_content(target, {"containerd.io/gc.root": "1"})
        else:
            here.store.metadata.leases.create("more", lifetime_seconds=math.inf, content=[target])
    for path in root.glob("metadata.db-*"):
        path.unlink()
    shutil.copy(tmp_path / "old.db", root / "metadata.db")
    before = blobs(root)
    with ImageStore(root) as store, pytest.raises(StoreCorruptError, match="older database"):
        store.collect_garbage()
    assert blobs(root) == before
    assert not rebuild(root).was_whole
    with ImageStore(root) as store:
        store.collect_garbage()
    assert blobs(root) == before
