"""A backup in the place of the database: what it knows counts, whatever the note beside it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagestore import ImageStore
from imagestore.store.maintenance.rebuild import rebuild, restore_backup
from tests.support.node import PYTHON, node
from tests.unit.store.test_upkeep import damage_database


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store whose image was removed after the backup that is its database now."""
    root = tmp_path / "store"
    with node(root) as here:
        here.store.pull(PYTHON)
        here.store.backup(tmp_path / "backup.db")
        for _ in range(3):
            here.store.remove(PYTHON)
            here.store.pull(PYTHON)
        here.store.remove(PYTHON)
    (root / "last-change.json").rename(root / "copies" / "before.json")
    (root / "last-change.json").write_bytes((root / "copies" / "before.json").read_bytes())
    for path in root.glob("metadata.db*"):
        path.unlink()
    (tmp_path / "backup.db").rename(root / "metadata.db")
    return root


def test_a_restored_backup_has_the_last_word_and_goes_on_with_later_numbers(root: Path) -> None:
    with ImageStore(root) as store:
        assert [image.reference for image in store.list()] == [PYTHON]
    noted = json.loads((root / "copies" / "before.json").read_text())["number"]
    with ImageStore(root) as store:
        store.pin(PYTHON)
        generation = store.metadata.generation()
        assert generation is not None
        assert generation > noted
    damage_database(root)
    assert [record.is_pinned for record in rebuild(root).restored] == [True]


def test_images_of_a_restored_backup_come_back_although_nothing_changed_since(root: Path) -> None:
    ImageStore(root).close()
    damage_database(root)
    assert [record.is_pinned for record in rebuild(root).restored] == [False]


def test_a_backup_of_another_store_counts_where_it_is_restored(root: Path, tmp_path: Path) -> None:
    with node(tmp_path / "other") as here:
        here.store.pull(PYTHON)
        here.store.backup(tmp_path / "other.db")
    restore_backup(root, tmp_path / "other.db")
    with ImageStore(root) as store:
        store.pin(PYTHON)
        store.collect_garbage()
        assert store.check().faults == ()
