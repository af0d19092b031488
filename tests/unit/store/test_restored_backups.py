"""A backup in the place of the database: what it knows counts, whatever the journal beside it says."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from imagestore import ImageStore
from imagestore.store.maintenance.rebuild import rebuild
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
    for path in root.glob("metadata.db*"):
        path.unlink()
    (tmp_path / "backup.db").rename(root / "metadata.db")
    return root


def rebuilt(root: Path) -> list[bool]:
    """Whether each image is pinned that comes back when the database is damaged."""
    damage_database(root)
    return [record.is_pinned for record in rebuild(root).restored]


def test_a_restored_backup_has_the_last_word_about_later_changes(root: Path) -> None:
    """The journal goes on while the backup lies there; a later rebuild must not believe what came in between."""
    with ImageStore(root) as store:
        assert [image.reference for image in store.list()] == [PYTHON]
    with ImageStore(root) as store:
        store.pin(PYTHON)
    assert rebuilt(root) == [True]


def test_images_of_a_restored_backup_come_back_although_nothing_changed_since(root: Path) -> None:
    ImageStore(root).close()
    assert rebuilt(root) == [False]


@pytest.mark.parametrize(
    ("name", "how"), [("records.jsonl.tmp", fcntl.LOCK_EX), ("records.jsonl", fcntl.LOCK_SH)], ids=["writing", "adding"]
)
def test_a_journal_that_is_in_use_follows_a_restored_backup_later(root: Path, name: str, how: int) -> None:
    """While another process writes the journal anew, or adds a line to it."""
    with open(root / name, "ab") as used:
        fcntl.flock(used, how)
        ImageStore(root).close()
    ImageStore(root).close()
    assert rebuilt(root) == [False]


def test_changes_of_a_restored_backup_are_later_than_all_in_a_journal_in_use(root: Path) -> None:
    with open(root / "records.jsonl.tmp", "ab") as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        with ImageStore(root) as store:
            store.pin(PYTHON)
    assert rebuilt(root) == [True]
