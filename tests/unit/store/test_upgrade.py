"""A store that the released version 0.1.0 wrote is opened, read, checked and written by this one."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from imagestore import ImageStore, config, platforms
from imagestore.errors import StoreError
from imagestore.store.maintenance.rebuild import rebuild, restore_backup
from imagestore.testing import RegistryServer, build_image, layer

STORES: Final = Path(__file__).parents[3] / "fixtures" / "stores"
CONFIG: Final = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.hyperv]
runtime_type = "io.containerd.runhcs.v1"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.hyperv.guest_platform]
OS = "windows"
Architecture = "amd64"
OSVersion = "10.0.17763"
"""
HOST: Final = platforms.parse("linux/amd64")
#: What it had: reference, handler, platform.
RECORDS: Final = [
    ("kept.example/single:1", "runc", "linux/amd64"),
    ("registry.example/app:1", "hyperv", "windows(10.0.17763.1)/amd64"),
    ("registry.example/app:1", "runc", "linux/amd64"),
    ("registry.example/single:1", "runc", "linux/amd64"),
]


@pytest.fixture(params=sorted(path.name.removesuffix(".tar.xz") for path in STORES.glob("*.tar.xz")))
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a store of a version."""
    version: str = request.param
    with tarfile.open(STORES / f"{version}.tar.xz") as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / version
    folder.chmod(0o700)
    return folder


@pytest.fixture
def store(root: Path) -> Iterator[ImageStore]:
    with open_store(root) as opened:
        yield opened


def open_store(root: Path) -> ImageStore:
    return ImageStore(root, config=config.loads(CONFIG, filename="config.toml", host=HOST), host=HOST)


def test_all_is_there_and_whole(store: ImageStore) -> None:
    found = [(image.reference, image.runtime_handler, str(image.platform)) for image in store.list()]
    assert found == RECORDS
    pinned = store.metadata.images.get("kept.example/single:1", "runc")
    assert pinned is not None
    assert pinned.is_pinned
    assert [lease.id for lease in store.metadata.leases.find()] == ["mine"]
    report = store.check()
    assert report.faults == ()
    assert (report.records, report.blobs) == (4, 13)


def test_it_gets_an_id_that_stays_and_that_a_rebuild_finds(root: Path) -> None:
    with open_store(root) as store:
        made = store.id
        store.metadata.keep_copy(at_once=True)
    (root / "metadata.db").unlink()
    rebuild(root)
    with open_store(root) as store:
        assert store.id == made


def test_a_backup_from_before_ids_does_not_change_the_id_of_the_store_where_it_is_restored(
    root: Path, tmp_path: Path
) -> None:
    """Else what was published under the id would belong to no store."""
    shutil.copy(root / "metadata.db", tmp_path / "backup.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "backup.db", isolation_level=None)) as backup:
        backup.execute("INSERT INTO counter VALUES ('copied', 1)")
    with open_store(root) as store:
        made = store.id
        store.remove("registry.example/app:1", runtime_handler="hyperv")
    restore_backup(root, tmp_path / "backup.db")
    with open_store(root) as store:
        assert (store.id, len(list(store.list()))) == (made, 4)


def test_each_handler_has_its_manifest(store: ImageStore) -> None:
    chosen = store.match("registry.example/app:1", offline=True)
    for handler in ("runc", "hyperv"):
        verdict = chosen[handler].chosen
        assert verdict is not None
        assert verdict.descriptor.digest == store.get("registry.example/app:1", runtime_handler=handler).manifest.digest


def test_work_goes_on(store: ImageStore) -> None:
    assert store.collect_garbage().digests == ()
    with RegistryServer({"registry.example/new:1": build_image("linux/amd64", layers=[layer("new")])}) as server:
        store.pull(server.server.reference("registry.example/new:1"))
    store.remove("registry.example/app:1", runtime_handler="hyperv")
    assert store.collect_garbage().digests
    assert len(list(store.list())) == 4
    assert store.check().faults == ()


def test_a_lost_database_is_rebuilt_by_the_version_that_wrote_its_journal(root: Path) -> None:
    (root / "metadata.db").unlink()
    for refused in (lambda: open_store(root), lambda: rebuild(root)):
        with pytest.raises(StoreError, match=r"records\.jsonl") as caught:
            refused()
        assert "of the version before" in caught.value.hint
    assert (root / "records.jsonl").exists()


def test_an_older_imagestore_gets_back_what_was_copied_before(root: Path) -> None:
    with contextlib.closing(sqlite3.connect(root / "metadata.db")) as db:
        rows, version = db.execute("SELECT * FROM image").fetchall(), db.execute("PRAGMA user_version").fetchone()
    open_store(root).close()
    (copy,) = (root / "copies").glob("metadata-*.schema-*.db")
    with contextlib.closing(sqlite3.connect(copy)) as db:
        assert db.execute("SELECT * FROM image").fetchall() == rows
        assert db.execute("PRAGMA user_version").fetchone() == version
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
