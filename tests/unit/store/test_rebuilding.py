"""What becomes of a damaged database and its log while a new one is made in its place."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagestore import Digest, ImageStore
from imagestore.errors import StoreCorruptError
from imagestore.store.maintenance.rebuild import rebuild
from imagestore.testing import build_index
from tests.support.embedded import copy_records
from tests.support.node import PYTHON, node, python_image
from tests.unit.store.test_upkeep import OTHER

REBUILD = (
    "import sys, pathlib; from imagestore.store.maintenance.rebuild import rebuild; rebuild(pathlib.Path(sys.argv[1]))"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that was killed: one record is in the database, another only in its log."""
    root = tmp_path / "store"
    with node(root, {PYTHON: python_image(), OTHER: build_index(["linux/amd64"], seed="other")}) as here:
        here.store.pull(PYTHON, runtime_handler="kata")
        with contextlib.closing(sqlite3.connect(root / "metadata.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        here.store.pull(OTHER, runtime_handler="kata")
        here.store.metadata.keep_copy(at_once=True)
        here.store.metadata.leases.create("of work that died", lifetime_seconds=60)
        for name in ("metadata.db", "metadata.db-wal"):
            shutil.copy(root / name, tmp_path / name)
    for name in ("metadata.db", "metadata.db-wal"):
        os.replace(tmp_path / name, root / name)
    return root


def references(root: Path) -> set[str]:
    with ImageStore(root) as store:
        assert store.metadata.damage() == ()
        return {image.reference for image in store.list()}


def damage(path: Path) -> None:
    """A page that neither the log has nor a list of images reads."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as database:
        query = "SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size WHERE name = 'named_image'"
        ((page, size),) = database.execute(query).fetchall()
    with open(path, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"7" * 200)


def test_the_old_log_is_gone_for_good_before_the_new_database_has_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power between the two must not leave a log that would be played into another database."""
    steps: list[str] = []

    def noted(step: Callable[[str | Path, str | Path], None]) -> Callable[[str | Path, str | Path], None]:
        def run(old: str | Path, new: str | Path) -> None:
            steps.append(Path(new).name)
            step(old, new)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", noted(os.replace))
        patch.setattr(os, "rename", noted(os.rename))
        patch.setattr(
            "imagestore.store.maintenance.rebuild.sync_directory", lambda path: steps.append(f"synced {path.name}")
        )
        damage(root / "metadata.db")
        rebuild(root)
    assert steps == ["metadata.db.damaged-1", "synced store", "metadata.db", "synced store"]
    assert references(root) == {PYTHON, OTHER}


def test_a_log_whose_database_is_gone_is_not_played_into_the_new_one(root: Path) -> None:
    (root / "metadata.db").unlink()
    report = rebuild(root)
    assert report.kept_as is None
    assert {record.reference for record in report.restored} == {PYTHON, OTHER}
    assert references(root) == {PYTHON, OTHER}
    with ImageStore(root) as store:
        assert [lease.id for lease in store.metadata.leases.find()] == [report.found_lease]


def test_a_rebuild_that_dies_leaves_no_older_database_that_looks_whole(root: Path) -> None:
    """A collection on it would take what only the log knew."""
    damage(root / "metadata.db")
    for place in ("link:1", "rename:1", "unlink:1", "unlink:2", "replace:1"):
        environment = {**os.environ, "IMAGESTORE_FAILPOINT": f"rebuild-{place}"}
        command = [sys.executable, "-c", REBUILD, os.fspath(root)]
        assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
        with contextlib.suppress(StoreCorruptError), ImageStore(root) as store:
            assert {image.reference for image in store.list()} == {PYTHON, OTHER}, place
    assert {record.reference for record in rebuild(root).restored} == {PYTHON, OTHER}
    assert references(root) == {PYTHON, OTHER}


def test_a_file_system_without_second_names_keeps_a_copy_of_the_log(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    log = (root / "metadata.db-wal").read_bytes()
    (root / "metadata.db").unlink()
    monkeypatch.setattr(os, "link", refuse)
    assert not rebuild(root).was_whole
    assert (root / "metadata.db.damaged-1-wal").read_bytes() == log
    assert references(root) == {PYTHON, OTHER}


def test_a_record_that_holds_what_its_index_does_not_list_is_not_restored(root: Path) -> None:
    """Whoever put it didn't read the index."""
    foreign = Digest.of(b"in no index")
    with ImageStore(root) as store:
        record = next(image.record for image in store.list(name=PYTHON))
        store.metadata.images.put(replace(record, reference=f"{PYTHON}-odd", roots=(*record.roots, foreign)), {})
    copy_records(root)
    (root / "metadata.db").unlink()
    ((skipped, reason),) = rebuild(root).skipped
    assert skipped.reference == f"{PYTHON}-odd"
    assert str(foreign) in reason
    assert references(root) == {PYTHON, OTHER}
