"""A check while others work on the store, and on a database that only some readers can read."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from imagestore import CancelToken, Digest, ImageStore
from imagestore.errors import ContentNotFoundError, StoreCorruptError, StoreError
from imagestore.store.maintenance.check import FaultKind, record_faults
from imagestore.store.maintenance.rebuild import rebuild
from tests.support.locks import is_locked
from tests.support.node import HYPERV, PYTHON, Node, node
from tests.unit.store.test_upkeep import spoil

if TYPE_CHECKING:
    from imagestore.content import ContentStore


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path) as opened:
        opened.store.pull(PYTHON, runtime_handler=HYPERV)
        yield opened


def test_an_image_that_is_used_or_pinned_meanwhile_keeps_its_faults(here: Node) -> None:
    (record,) = here.store.metadata.images.find()
    lost = here.store.get(PYTHON, runtime_handler=HYPERV).layers[0].digest
    here.store.content.delete(lost)
    here.store.pin(PYTHON, runtime_handler=HYPERV)
    (used,) = here.store.metadata.images.find()
    assert used != record
    faults = record_faults(here.store.metadata, here.store.content, record)
    assert [(each.kind, each.digest) for each in faults] == [(FaultKind.BLOB_MISSING, lost)]
    here.store.remove(PYTHON, runtime_handler=HYPERV)
    assert record_faults(here.store.metadata, here.store.content, record) == []


def test_an_image_that_leads_elsewhere_meanwhile_has_no_fault(here: Node) -> None:
    """What it led to before may be collected by now; that is no damage."""
    (record,) = here.store.metadata.images.find()
    here.store.content.delete(here.store.get(PYTHON, runtime_handler=HYPERV).layers[0].digest)
    assert len(record_faults(here.store.metadata, here.store.content, record)) == 1
    here.store.metadata.images.put(replace(record, manifest=record.target), {})
    assert record_faults(here.store.metadata, here.store.content, record) == []


def test_content_of_another_size_than_its_manifest_says_is_damaged(here: Node) -> None:
    (record,) = here.store.metadata.images.find()
    layer = here.store.get(PYTHON, runtime_handler=HYPERV).layers[0]
    spoil(here.store, layer.digest, b"cut off")
    faults = record_faults(here.store.metadata, here.store.content, record)
    assert [(each.kind, each.digest) for each in faults] == [(FaultKind.BLOB_DAMAGED, layer.digest)]
    assert faults[0].detail == f"expected {layer.size} bytes, found 7"


class Vanishing:
    """Content whose configs go between the look and the reading, as a collection takes them."""

    def __init__(self, content: ContentStore, gone: Digest) -> None:
        self._content = content
        self._gone = gone

    def __getattr__(self, name: str) -> object:
        return getattr(self._content, name)

    def read(self, digest: Digest, *, limit_bytes: int) -> bytes:
        if digest == self._gone:
            raise ContentNotFoundError(f"content {digest} is gone")
        return self._content.read(digest, limit_bytes=limit_bytes)


def test_a_config_that_is_collected_meanwhile_ends_no_check(here: Node) -> None:
    (record,) = here.store.metadata.images.find()
    content = cast("ContentStore", Vanishing(here.store.content, record.image_id))
    assert record_faults(here.store.metadata, content, record) == []


def test_records_that_cannot_be_read_hide_no_damage_of_blobs(here: Node) -> None:
    """They are read when every blob was hashed, which may have taken hours."""
    layer = here.store.get(PYTHON, runtime_handler=HYPERV).layers[0].digest
    spoil(here.store, layer)
    with sqlite3.connect(here.store.root / "metadata.db") as database:
        database.execute("UPDATE image SET warnings = '['")
    database.close()
    report = here.store.check()
    assert [each.kind for each in report.faults] == [FaultKind.BLOB_DAMAGED, FaultKind.DATABASE_DAMAGED]
    assert report.damaged == {layer}


@pytest.mark.parametrize("child", [b"\xff", b"nonsense"])
def test_an_edge_that_cannot_be_read_hides_no_damage_of_blobs(here: Node, child: bytes) -> None:
    """SQLite's own check takes any bytes for a text; and who is sent to rebuild the database has it rebuilt."""
    layer = here.store.get(PYTHON, runtime_handler=HYPERV).layers[0].digest
    spoil(here.store, layer)
    with contextlib.closing(sqlite3.connect(here.store.root / "metadata.db")) as database, database:
        query = "UPDATE edge SET child = CAST(? AS TEXT) WHERE child = (SELECT max(child) FROM edge)"
        database.execute(query, (child,))
    kinds = [each.kind for each in here.store.check().faults]
    assert (len(kinds), set(kinds)) == (2, {FaultKind.BLOB_DAMAGED, FaultKind.DATABASE_DAMAGED})
    here.store.close()
    assert not rebuild(here.store.root).was_whole
    with ImageStore(here.store.root) as store:
        assert [each.kind for each in store.check().faults] == [FaultKind.BLOB_DAMAGED]


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("UPDATE edge SET parent = CAST(x'ff' AS TEXT) WHERE parent = (SELECT max(parent) FROM edge)", "edge"),
        ("INSERT INTO label_edge SELECT digest, CAST(x'ff' AS TEXT) FROM image_root LIMIT 1", "label_edge"),
        ("INSERT INTO content_label VALUES (CAST(x'ff' AS TEXT), 'a', 'b')", "content_label"),
        ("INSERT INTO lease (id, created_at, expires_at) VALUES (CAST(x'ff' AS TEXT), 1, 9e9)", "lease"),
        ("INSERT INTO lease (id, created_at, expires_at, labels) VALUES ('a', 1, 9e9, 'nonsense')", "lease"),
        ("INSERT INTO namespace VALUES ('a', '[]')", "namespace"),
        ("INSERT INTO namespace_content VALUES ('a', CAST(x'ff' AS TEXT), 1, '{}', 0, 1, 1)", "namespace_content"),
    ],
)
def test_a_text_that_is_none_is_found_in_any_table_and_a_rebuild_mends_it(
    here: Node, statement: str, table: str
) -> None:
    """Else collections would fail for ever, and who is sent to rebuild the database would be told that it is whole."""
    with contextlib.closing(sqlite3.connect(here.store.root / "metadata.db")) as database, database:
        assert database.execute(statement).rowcount
    faults = [each for each in here.store.check().faults if each.kind is FaultKind.DATABASE_DAMAGED]
    assert [each.detail.partition(":")[0] for each in faults] == [f"table {table}"]
    here.store.close()
    report = rebuild(here.store.root)
    assert not report.was_whole
    with ImageStore(here.store.root) as store:
        store.collect_garbage()
        assert store.check().faults == ()
        assert [lease.id for lease in store.metadata.leases.find()] == [report.found_lease]


def test_leases_and_namespaces_that_cannot_be_read_are_damage(here: Node) -> None:
    with contextlib.closing(sqlite3.connect(here.store.root / "metadata.db")) as database, database:
        database.execute("INSERT INTO lease (id, created_at, expires_at, labels) VALUES ('a', 1, 9e9, 'nonsense')")
        database.execute("INSERT INTO namespace VALUES ('a', 'nonsense')")
    for read in (here.store.metadata.leases.find, here.store.metadata.namespaces.find):
        with pytest.raises(StoreCorruptError, match="a record can't be read"):
            read()


def test_damage_that_cannot_be_deleted_keeps_no_repair_from_telling_what_it_did(
    here: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file whose inode is damaged, which nothing needs any more."""
    layer = here.store.get(PYTHON, runtime_handler=HYPERV).layers[0].digest
    spoil(here.store, layer)
    with here.store.content.writer("r", expected=Digest.of(b"x"), total=1, cancel=CancelToken()) as writer:
        writer.write(b"x")
        lost = writer.commit()
    spoil(here.store, lost)
    delete = here.store.content.delete

    def fail(digest: Digest) -> int:
        if digest == lost:
            raise StoreError("can't delete")
        return delete(digest)

    report = here.store.check()
    monkeypatch.setattr(here.store.content, "delete", fail)
    repaired = here.store.repair(report)
    assert (repaired.fetched, repaired.deleted, repaired.failures) == ((layer,), (), ((str(lost), "can't delete"),))


def test_damage_is_deleted_while_nobody_can_come_to_need_it(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull that leases the blob after the look would lose it."""
    layer = here.store.get(PYTHON, runtime_handler=HYPERV).layers[0].digest
    here.store.remove(PYTHON, runtime_handler=HYPERV)
    spoil(here.store, layer)
    report = here.store.check()
    delete, locked = here.store.content.delete, []

    def noted(digest: Digest) -> int:
        locked.append(is_locked(here.store.root / "metadata.db"))
        return delete(digest)

    monkeypatch.setattr(here.store.content, "delete", noted)
    assert here.store.repair(report).deleted == (layer,)
    assert locked == [True]
