"""Content that lies elsewhere on the machine is adopted when it is right, and only then."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imagestore import CancelToken, Digest, ImageStore
from imagestore.content import adopt
from imagestore.content.api import Adoption
from imagestore.content.local import LocalContentStore
from imagestore.errors import OperationCancelledError, StoreFullError
from imagestore.registry import connect
from imagestore.testing import Registry
from tests.support.node import HOST, PYTHON, node, python_image

NEVER = CancelToken()
DATA = b"some content" * 1000
DIGEST = Digest.of(DATA)


@pytest.fixture
def store(tmp_path: Path) -> LocalContentStore:
    return LocalContentStore(
        tmp_path / "content", tmp_path / "locks", sources=[tmp_path / "empty", tmp_path / "source"]
    )


def offer(folder: Path, data: bytes = DATA, *, mode: int = 0o444, digest: Digest = DIGEST) -> Path:
    path = folder / "source" / "blobs" / digest.algorithm / digest.encoded
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_a_read_only_file_is_linked_or_shared(tmp_path: Path, store: LocalContentStore) -> None:
    source = offer(tmp_path)
    how = store.adopt(DIGEST, len(DATA), cancel=NEVER)
    assert how in (Adoption.HARD_LINK, Adoption.REFLINK)
    if how is Adoption.HARD_LINK:
        assert store.path(DIGEST).stat().st_ino == source.stat().st_ino
    assert store.read(DIGEST, limit_bytes=len(DATA)) == DATA
    assert list(store.statuses()) == []
    store.delete(DIGEST)
    assert source.read_bytes() == DATA


def test_a_file_that_may_be_written_never_shares_its_fate(tmp_path: Path, store: LocalContentStore) -> None:
    source = offer(tmp_path, mode=0o644)
    assert store.adopt(DIGEST, len(DATA), cancel=NEVER) in (Adoption.COPY, Adoption.REFLINK)
    source.write_bytes(b"changed")
    assert store.read(DIGEST, limit_bytes=len(DATA)) == DATA
    assert store.path(DIGEST).stat().st_mode & 0o777 == 0o444


def spoiled(folder: Path) -> None:
    offer(folder, b"x" * len(DATA))


def short(folder: Path) -> None:
    offer(folder, DATA[:-1])


def nothing(folder: Path) -> None:
    (folder / "source").mkdir()


def symbolic_link(folder: Path) -> None:
    path = offer(folder)
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")


def directory(folder: Path) -> None:
    (folder / "source" / "blobs" / DIGEST.algorithm / DIGEST.encoded).mkdir(parents=True)


def pipe(folder: Path) -> None:
    path = offer(folder)
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("prepare", [spoiled, short, nothing, symbolic_link, directory, pipe])
def test_what_is_not_the_blob_is_passed_over(
    tmp_path: Path, store: LocalContentStore, prepare: Callable[[Path], None]
) -> None:
    prepare(tmp_path)
    assert store.adopt(DIGEST, len(DATA), cancel=NEVER) is None
    assert not store.exists(DIGEST)
    assert list((store.root / "ingest").iterdir()) == []


def test_content_under_an_unknown_algorithm_is_never_adopted(store: LocalContentStore) -> None:
    assert store.adopt(Digest("blake3", "0" * 64), 1, cancel=NEVER) is None


def test_adopting_ends_when_cancelled(tmp_path: Path, store: LocalContentStore) -> None:
    offer(tmp_path)
    token = CancelToken()
    token.cancel()
    with pytest.raises(OperationCancelledError):
        store.adopt(DIGEST, len(DATA), cancel=token)


def test_a_source_that_cannot_be_read_or_changes_is_passed_over(
    tmp_path: Path, store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are elsewhere too: a bad disk next door must not fail a pull."""
    offer(tmp_path, mode=0o644)
    real, calls = os.pread, 0

    def fails_when_hashed(descriptor: int, count: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def changes_before_the_copy(descriptor: int, count: int, offset: int) -> bytes:
        nonlocal calls
        calls += 1
        data = real(descriptor, count, offset)
        return data if calls == 1 else b"?" * len(data)

    for trouble in (fails_when_hashed, changes_before_the_copy):
        with monkeypatch.context() as broken:
            broken.setattr(os, "pread", trouble)
            broken.setattr(adopt, "reflink", lambda target, source: False)
            assert store.adopt(DIGEST, len(DATA), cancel=NEVER) is None
    assert not store.exists(DIGEST)
    assert list(store.statuses()) == []
    assert store.adopt(DIGEST, len(DATA), cancel=NEVER) is not None


def share_blocks(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """As on a file system that shares blocks; what they hold by then."""

    def reflink(target: int, source: int) -> bool:
        return os.pwrite(target, data, 0) == len(data)

    monkeypatch.setattr(adopt, "reflink", reflink)


def test_shared_blocks_become_a_blob(tmp_path: Path, store: LocalContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    source = offer(tmp_path)
    share_blocks(monkeypatch, DATA)
    assert store.adopt(DIGEST, len(DATA), cancel=NEVER) is Adoption.REFLINK
    assert store.path(DIGEST).stat().st_ino != source.stat().st_ino
    assert store.read(DIGEST, limit_bytes=len(DATA)) == DATA


def test_shared_blocks_that_changed_since_they_were_hashed_are_no_blob(
    tmp_path: Path, store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path)
    share_blocks(monkeypatch, b"?" * len(DATA))
    assert store.adopt(DIGEST, len(DATA), cancel=NEVER) is None
    assert not store.exists(DIGEST)
    assert list(store.statuses()) == []


def test_whether_another_store_has_a_blob_is_found_by_name_and_size(tmp_path: Path, store: LocalContentStore) -> None:
    """For what is there a pull asks for no free space beforehand, and a plan counts nothing to fetch."""
    assert not store.is_at_source(DIGEST, len(DATA))
    offer(tmp_path)
    assert store.is_at_source(DIGEST, len(DATA))
    assert not store.is_at_source(DIGEST, len(DATA) + 1)


def test_a_link_that_a_killed_adoption_left_is_taken_over(
    tmp_path: Path, store: LocalContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = offer(tmp_path)
    monkeypatch.setattr(adopt, "reflink", lambda target, source: False)
    with store.writer(f"adopt-{DIGEST}", expected=DIGEST, total=len(DATA), cancel=NEVER) as writer:
        os.link(source, writer.directory / "linked")
    assert store.adopt(DIGEST, len(DATA), cancel=NEVER) is Adoption.HARD_LINK
    assert list((store.root / "ingest").iterdir()) == []


def test_a_pull_takes_what_another_store_has(tmp_path: Path) -> None:
    with node(tmp_path / "first") as first:
        image = first.store.pull(PYTHON)
        registry = Registry({PYTHON: python_image()})
        with (
            connect(transport=registry.transport) as client,
            ImageStore(
                tmp_path / "second",
                config=first.store.config,
                host=HOST,
                registry=client,
                sources=[(first.store.root / "content")],
            ) as second,
        ):
            same = second.pull(PYTHON)
            # The config may be read as a document; the layers come from next door.
            assert registry.ledger.count(kind="blob") <= 1
            assert same.id == image.id
            assert second.check().faults == ()


def test_what_may_be_adopted_needs_no_free_space_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link or shared blocks take none; a copy that doesn't fit is refused by the disk."""
    with node(tmp_path / "first") as first, connect(transport=first.registry.transport) as client:
        first.store.pull(PYTHON)
        open_store = functools.partial(ImageStore, config=first.store.config, host=HOST, registry=client)
        with open_store(tmp_path / "without") as alone:
            monkeypatch.setattr(alone.content, "free_bytes", lambda: 0)
            with pytest.raises(StoreFullError):
                alone.pull(PYTHON)
        with open_store(tmp_path / "with", sources=[(first.store.root / "content")]) as neighbour:
            monkeypatch.setattr(neighbour.content, "free_bytes", lambda: 0)
            assert neighbour.pull(PYTHON).id == first.store.get(PYTHON).id
