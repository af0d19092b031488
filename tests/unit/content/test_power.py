"""What outlasts a loss of power: bytes are synced before they get their names, and names before anybody is told."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from imagestore import CancelToken, Digest
from imagestore.content.adopt import hard_link
from imagestore.content.api import SmallBlob
from imagestore.content.local import LocalContentStore
from imagestore.errors import StoreError
from tests.support.syncs import noted_syncs

NEVER = CancelToken()
DATA = b"what must not be lost"


@pytest.fixture
def store(tmp_path: Path) -> LocalContentStore:
    return LocalContentStore(tmp_path / "content", tmp_path / "locks")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, store: LocalContentStore) -> list[str]:
    """What is asked of the disk for a blob, in order."""
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            folders = (store.root / "blobs").iterdir()
            steps.extend(f"folder {folder.name}" for folder in folders if os.path.samestat(status, folder.stat()))
        else:
            steps.append("bytes")
        fsync(descriptor)

    def noted_rename(old: str | Path, new: str | Path) -> None:
        if Path(new).is_relative_to(store.root / "blobs"):
            steps.append("name")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    return steps


def _since_the_bytes(steps: list[str]) -> list[str]:
    """Without the folders that were made before."""
    return steps[steps.index("bytes") :]


def test_a_folder_that_is_made_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut takes it away, with all the blobs in it that were synced."""
    synced = noted_syncs(monkeypatch)
    content = tmp_path / "new" / "content"
    LocalContentStore(content, tmp_path / "new" / "locks")
    for folder in (tmp_path, tmp_path / "new", content, content / "blobs"):
        assert os.fspath(folder) in synced


def test_a_commit_syncs_the_bytes_then_names_them_then_syncs_the_name(
    store: LocalContentStore, steps: list[str]
) -> None:
    (store.root / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    with store.writer("r", expected=Digest.of(DATA), total=len(DATA), cancel=NEVER) as writer:
        writer.write(DATA)
        writer.commit(Digest.of(DATA), len(DATA))
    assert _since_the_bytes(steps) == ["bytes", "name", "folder sha256"]


def test_a_commit_without_durable_name_saves_the_sync_of_the_folder(store: LocalContentStore, steps: list[str]) -> None:
    (store.root / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    with store.writer("r", expected=Digest.of(DATA), total=len(DATA), cancel=NEVER) as writer:
        writer.write(DATA)
        writer.commit(Digest.of(DATA), len(DATA), has_durable_name=False)
    assert _since_the_bytes(steps) == ["bytes", "name"]
    store.make_durable(["sha256", "sha512"])
    assert steps[-1] == "folder sha256"


def test_a_batch_syncs_all_bytes_then_names_them_then_syncs_each_folder_once(
    store: LocalContentStore, steps: list[str]
) -> None:
    for algorithm in ("sha256", "sha512"):
        (store.root / "blobs" / algorithm).mkdir(parents=True, exist_ok=True)
    blobs = [
        SmallBlob(Digest.of(raw, algorithm), len(raw), lambda raw=raw: raw, "the blob")  # type: ignore[misc]
        for raw, algorithm in ((b"one", "sha256"), (b"two", "sha256"), (b"three", "sha512"))
    ]
    with store.small_blobs(NEVER) as small_blobs:
        small_blobs.put(blobs)
        assert steps.count("bytes") == 3
        assert steps[steps.index("name") :][:3] == ["name"] * 3
        assert sorted(steps[-2:]) == ["folder sha256", "folder sha512"]


def test_a_file_is_linked_in_after_its_bytes_are_synced(
    tmp_path: Path, store: LocalContentStore, steps: list[str]
) -> None:
    """Whoever wrote it may not have."""
    source, target = tmp_path / "source", store.root / "blobs" / "sha256" / "a"
    source.write_bytes(DATA)
    source.chmod(0o444)
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file:
        assert hard_link(file.fileno(), source, target, tmp_path / "waiting")
    assert steps == ["bytes", "name", "folder sha256"]


def test_a_file_that_can_not_be_linked_or_was_exchanged_gets_no_name(
    tmp_path: Path, store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other, target = tmp_path / "source", tmp_path / "other", store.root / "blobs" / "sha256" / "a"
    for path in (source, other):
        path.write_bytes(DATA)
        path.chmod(0o444)
    exchanged = tmp_path / "exchanged"
    exchanged.symlink_to(source)
    with source.open("rb") as file:
        for name in (other, exchanged, tmp_path / "gone"):
            assert not hard_link(file.fileno(), name, target, tmp_path / "waiting")
            assert not target.exists()
            assert not (tmp_path / "waiting").is_symlink()

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EXDEV, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", refuse)
        assert not hard_link(file.fileno(), source, target, tmp_path / "waiting")


def test_what_can_not_be_read_for_now_is_not_given_up(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only bytes that the disk lost are; a process without descriptors or memory tries again and resumes."""
    with store.writer("r", expected=Digest.of(DATA), total=len(DATA), cancel=NEVER) as writer:
        writer.write(DATA[:5])

    def refuse(*_: object) -> bytes:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", refuse)
        with pytest.raises(StoreError):
            store.writer("r", expected=Digest.of(DATA), total=len(DATA), cancel=NEVER)
    with store.writer("r", expected=Digest.of(DATA), total=len(DATA), cancel=NEVER) as writer:
        assert writer.offset == 5
