"""Files and folders of a store that refuse its owner: what they are called, what mends them, and what mends itself."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.errors import StoreReadOnlyError
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.util.file_locks import FileLock
from tests.support.node import PYTHON, Node, node
from tests.support.strangers import ordinary_user


def work(here: Node) -> None:
    """Read and write every file beside the database."""
    here.store.pull(PYTHON, runtime_handler="kata")
    here.store.check()
    here.store.pin(PYTHON, runtime_handler="kata")
    here.store.remove(PYTHON, runtime_handler="kata")
    here.store.collect_garbage()
    here.store.usage()


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything that the work needs is loaded."""
    with node(tmp_path_factory.mktemp("used")) as here:
        work(here)
        here.store.pull(PYTHON)


@pytest.fixture
def root(used: None) -> Iterator[Path]:
    """A store with an image, as a killed process leaves it: with a log."""
    with ordinary_user() as folder:
        with node(folder / "first") as here:
            here.store.pull(PYTHON)
            shutil.copytree(folder / "first", folder / "store")
        yield folder / "store"


def test_a_log_that_was_made_while_only_reading_was_allowed_keeps_nobody_from_writing(root: Path) -> None:
    database = root / "metadata.db"
    SqliteMetadataStore(database).close()
    assert not list(root.glob("metadata.db-*"))
    database.chmod(0o400)
    with node(root) as here:
        assert len(list(here.store.list())) == 1
    assert {path.name: path.stat().st_mode & 0o777 for path in root.glob("metadata.db-*")} == {
        "metadata.db-shm": 0o400,
        "metadata.db-wal": 0o400,
    }
    database.chmod(0o600)
    with node(root) as here:
        work(here)


@pytest.mark.parametrize("end", ["-wal", "-shm"])
@pytest.mark.parametrize("mode", [0o400, 0o000])
def test_the_logs_files_get_what_the_database_allows(root: Path, end: str, mode: int) -> None:
    (root / f"metadata.db{end}").chmod(mode)
    with node(root) as here:
        work(here)


def test_an_open_store_names_its_files_that_may_not_be_written(root: Path) -> None:
    index = root / "metadata.db-shm"
    (root / "metadata.db").chmod(0o400)
    index.chmod(0o400)
    with contextlib.closing(SqliteMetadataStore(root / "metadata.db")) as metadata:
        (root / "metadata.db").chmod(0o600)
        with pytest.raises(StoreReadOnlyError, match=r"metadata\.db-shm: ") as caught:
            metadata.leases.create("here", lifetime_seconds=60)
        assert caught.value.hint == f"run 'chmod u+w {index}'"
        index.chmod(0o600)
        (root / "metadata.db-wal").chmod(0o600)
        with pytest.raises(StoreReadOnlyError) as caught:
            metadata.leases.create("here", lifetime_seconds=60)
        assert "open the store again" in caught.value.hint
    with contextlib.closing(SqliteMetadataStore(root / "metadata.db")) as metadata:
        metadata.leases.create("here", lifetime_seconds=60)


REFUSED = [
    "metadata.db",
    "content",
    "content/blobs",
    "content/blobs/sha256",
    "content/ingest",
    "locks",
]


@pytest.mark.parametrize("is_readable", [True, False])
@pytest.mark.parametrize("name", [*REFUSED, "a blob"])
def test_what_refuses_its_owner_is_named_with_the_command_that_mends_it(
    root: Path, name: str, is_readable: bool
) -> None:
    blob = max((root / "content/blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    refused = blob if name == "a blob" else root / name
    refused.chmod((0o500 if refused.is_dir() else 0o400) if is_readable else 0)
    try:
        with node(root) as here:
            work(here)
    except StoreReadOnlyError as error:
        assert str(error).startswith(str(refused if refused.is_file() else root / name.split("/")[0]))
        program, *arguments = shlex.split(error.hint.removeprefix("run '").removesuffix("'"))
        assert (program, arguments[1:]) == ("chmod", [str(refused)])
        subprocess.run([program, *arguments], check=True)
    else:
        # Nothing is made in these folders, and nobody writes a blob.
        assert is_readable
        assert name in ("content", "content/blobs", "a blob")
    with node(root) as here:
        work(here)


def test_a_lock_that_refuses_its_owner_is_named(root: Path) -> None:
    lock = root / "locks/ingest-of-a-killed-process"
    lock.touch(0o400)
    with pytest.raises(StoreReadOnlyError, match=f"{lock}: can't lock") as caught:
        FileLock(lock).try_acquire()
    assert caught.value.hint == f"run 'chmod u+w {lock}'"
