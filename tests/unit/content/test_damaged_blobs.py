"""A blob is removed for its damage only when it is damaged, and lock files that can't be cleared hinder nobody."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from imagestore import Digest
from imagestore.content.local import LocalContentStore
from imagestore.errors import IntegrityError, StoreError

DATA = b"content"
DIGEST = Digest.of(DATA)


@pytest.fixture
def store(tmp_path: Path) -> LocalContentStore:
    opened = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    (tmp_path / "content" / "blobs" / "sha256" / DIGEST.encoded).write_bytes(DATA)
    return opened


def test_a_whole_blob_stays_and_one_that_is_gone_is_no_error(store: LocalContentStore) -> None:
    assert store.delete_damaged(DIGEST)
    assert store.exists(DIGEST)
    assert not store.delete_damaged(Digest.of(b"never was here"))


@pytest.mark.parametrize("damaged", [b"", b"c0ntent", DATA * 2])
def test_a_damaged_blob_goes(store: LocalContentStore, damaged: bytes) -> None:
    store.path(DIGEST).write_bytes(damaged)
    assert not store.delete_damaged(DIGEST)
    assert not store.exists(DIGEST)


def test_a_blob_that_the_disk_can_not_open_goes(store: LocalContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_digest: Digest) -> None:
        raise IntegrityError("the disk can't read it")

    monkeypatch.setattr(store, "open", refuse)
    assert not store.delete_damaged(DIGEST)
    assert not store.exists(DIGEST)


def test_a_damaged_blob_that_was_removed_in_between_is_no_error(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.path(DIGEST)
    path.write_bytes(b"c0ntent")
    file = store.open(DIGEST)
    path.unlink()
    monkeypatch.setattr(store, "open", lambda _: file)
    assert not store.delete_damaged(DIGEST)


def test_damage_that_cannot_be_removed_is_an_error(store: LocalContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str, *, dir_fd: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    store.path(DIGEST).write_bytes(b"c0ntent")
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StoreError, match="can't delete: Operation not permitted"):
        store.delete_damaged(DIGEST)


def test_a_lock_file_that_can_not_be_opened_keeps_no_other_from_being_cleared(
    store: LocalContentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "foreign", "two"):
        (tmp_path / "locks" / name).touch()
    system_open = os.open

    def checked(path: str, flags: int, mode: int = 0o777) -> int:
        if path.endswith("foreign"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return system_open(path, flags, mode)

    monkeypatch.setattr(os, "open", checked)
    store.clear_locks()
    assert os.listdir(tmp_path / "locks") == ["foreign"]
