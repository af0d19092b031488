"""A store's folder that another user prepared is refused, and nothing in it is followed or waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imagestore import ImageStore
from imagestore.cli.main import main
from imagestore.content.ingests import ingest_name
from imagestore.errors import StoreError
from imagestore.metadata.sqlite.earlier_journal import EarlierJournal
from imagestore.metadata.sqlite.last_change import LastChangeNote
from imagestore.store.maintenance.rebuild import rebuild
from imagestore.util.file_locks import FileLock
from imagestore.util.files import open_regular
from tests.support.node import PYTHON, node

STRANGER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files are given to another user")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with node(root) as here:
        here.store.pull(PYTHON)
    return root


FOLDERS = ["content", "content/blobs", "content/blobs/sha256", "content/ingest", "locks", "copies"]
FILES = ["metadata.db", "records.jsonl", "last-change.json", "ballast", "waiting", "verified", "check.json"]


def refused(root: Path, path: Path, match: str) -> None:
    """By everything that opens a store, with the path that is wrong."""
    for use in (lambda: ImageStore(root).close(), lambda: rebuild(root)):
        with pytest.raises(StoreError, match=match) as caught:
            use()
        assert str(path) in str(caught.value)
        assert caught.value.hint
    assert main(["--root", str(root), "images"]) == 8


@needs_root
@pytest.mark.parametrize("name", ["", *FOLDERS, *FILES])
def test_what_another_user_owns_is_refused(root: Path, name: str) -> None:
    path = root / name
    if name in FILES:
        path.touch()
    os.chown(path, STRANGER, -1)
    refused(root, path, f"user {STRANGER} owns it")


@pytest.mark.parametrize("name", ["", *FOLDERS, *FILES])
def test_a_folder_that_all_users_may_write_is_refused(root: Path, name: str) -> None:
    path = root / name
    if name in FILES:
        path.touch()
    path.chmod(0o777)
    refused(root, path, "all users may write")


@pytest.mark.parametrize("name", [*FOLDERS, *FILES, "metadata.db-wal", "records.jsonl.old"])
def test_a_link_in_the_place_of_what_a_store_has_is_not_followed(root: Path, tmp_path: Path, name: str) -> None:
    path, elsewhere = root / name, tmp_path / "elsewhere"
    if os.path.lexists(path):
        path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = sorted(tmp_path.rglob("*"))
    refused(root, path, "symbolic link")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["content", "locks", *FILES, "metadata.db-shm"])
def test_a_fifo_in_the_place_of_what_a_store_has_is_refused_at_once(root: Path, tmp_path: Path, name: str) -> None:
    path = root / name
    if os.path.lexists(path):
        path.rename(tmp_path / "elsewhere")
    os.mkfifo(path)
    refused(root, path, "another kind of file")


def test_a_new_store_is_not_begun_where_links_were_prepared(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("whole")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "records.jsonl").symlink_to(tmp_path / "victim")
    refused(tmp_path / "store", tmp_path / "store" / "records.jsonl", "symbolic link")
    assert (tmp_path / "victim").read_text() == "whole"


def test_other_files_in_the_folder_and_a_link_to_it_are_no_reason(root: Path, tmp_path: Path) -> None:
    (root / "note").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    (tmp_path / "link").symlink_to(root)
    with ImageStore(tmp_path / "link") as store:
        assert len(list(store.list())) == 1


def use_lock(path: Path) -> None:
    FileLock(path).try_acquire()


def use_note(path: Path) -> None:
    path.rename(path.with_name("last-change.json"))
    LastChangeNote(path.with_name("metadata.db")).read()


def use_journal(path: Path) -> None:
    path.rename(path.with_name("records.jsonl"))
    EarlierJournal(path.with_name("metadata.db")).read()


@pytest.mark.parametrize("kind", ["link", "fifo"])
@pytest.mark.parametrize("use", [use_lock, use_note, use_journal])
def test_no_file_of_a_store_is_opened_through_a_link_or_waited_for(
    tmp_path: Path, use: Callable[[Path], None], kind: str
) -> None:
    """Also where it appears after the folder was looked at."""
    path = tmp_path / "file"
    if kind == "link":
        path.symlink_to(tmp_path / "victim")
    else:
        os.mkfifo(path)
    with pytest.raises((OSError, StoreError)):
        use(path)
    assert not (tmp_path / "victim").exists()


def test_an_ingest_whose_notes_are_fifos_hangs_no_collection(root: Path) -> None:
    folder = root / "content" / "ingest" / ingest_name("r")
    folder.mkdir()
    (folder / "data").write_bytes(b"x")
    for name in ("ref", "startedat", "updatedat", "total"):
        os.mkfifo(folder / name)
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - 1e6,) * 2)
    command = [sys.executable, "-m", "imagestore", "--root", str(root), "gc"]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    assert not folder.exists()


def test_a_regular_file_is_opened_and_no_descriptor_is_left_of_another_kind(tmp_path: Path) -> None:
    descriptor = open_regular(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"x")
    os.close(descriptor)
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="regular file"):
        open_regular(tmp_path / "fifo", os.O_RDONLY)
    assert len(os.listdir("/proc/self/fd")) == before
