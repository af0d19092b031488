"""A store's id: the same in every copy of its records, and lost only with the database, its copies and the note."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from imagestore import ImageStore
from imagestore.store.maintenance.rebuild import rebuild, restore_backup
from tests.support.embedded import copy_records
from tests.support.node import PYTHON, node


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with an image."""
    with node(tmp_path / "store") as here:
        here.store.pull(PYTHON)
    return tmp_path / "store"


def id_of(root: Path) -> str:
    with ImageStore(root) as store:
        return store.id


def test_every_store_has_one_of_its_own(root: Path, tmp_path: Path) -> None:
    assert id_of(root) == id_of(root)
    assert id_of(root) != id_of(tmp_path / "other")


def test_a_backup_takes_it_to_the_store_where_it_is_restored(root: Path, tmp_path: Path) -> None:
    with ImageStore(root) as store:
        store.backup(tmp_path / "backup.db")
    other = tmp_path / "other"
    assert id_of(other) != id_of(root)
    restore_backup(other, tmp_path / "backup.db")
    assert id_of(other) == id_of(root)


def test_the_restored_id_is_kept_by_a_rebuild_too(root: Path, tmp_path: Path) -> None:
    with ImageStore(root) as store:
        store.backup(tmp_path / "backup.db")
    other = tmp_path / "other"
    with node(other) as here:
        here.store.pull(PYTHON)
    restore_backup(other, tmp_path / "backup.db")
    copy_records(other)
    made = id_of(other)
    (other / "metadata.db").unlink()
    rebuild(other)
    assert id_of(other) == made == id_of(root)


@pytest.mark.parametrize("lost", [[], ["copies"], ["last-change.json"]])
def test_a_rebuild_keeps_it(root: Path, lost: list[str]) -> None:
    made = id_of(root)
    for name in ["metadata.db", *lost]:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    report = rebuild(root)
    assert [record.reference for record in report.restored] == ([] if "copies" in lost else [PYTHON])
    assert id_of(root) == made


def test_without_a_copy_and_a_note_a_rebuild_makes_a_new_one(root: Path) -> None:
    made = id_of(root)
    shutil.rmtree(root / "copies")
    for name in ("metadata.db", "last-change.json"):
        (root / name).unlink()
    rebuild(root)
    assert id_of(root) != made
