"""What a failed pull leaves behind, and how the next one goes on."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from imagestore import CancelToken, Digest
from imagestore.errors import (
    DeadlineExceededError,
    DigestMismatchError,
    ImageStoreError,
    OperationCancelledError,
    StoreFullError,
)
from imagestore.events import Event, Selected
from imagestore.testing import Image, build_index, layer
from tests.support.embedded import database_of
from tests.support.node import HYPERV, PROCESS, PYTHON, node, python_image, snapshot


def _damaged(image: Image, how: str) -> Image:
    """The same documents, but the last Windows layer's bytes are others (or fewer)."""
    from imagestore.testing.builders.bodies import BytesBody

    victim = image.manifests[2].layers[-1].digest
    body = b"".join(image.blobs[victim].chunks())
    changed = body[:-1] + bytes([body[-1] ^ 1]) if how == "flipped" else body[: len(body) // 2]
    return replace(image, blobs={**image.blobs, victim: BytesBody(changed)})


@pytest.mark.parametrize("how", ["flipped", "short"])
def test_damaged_blobs_never_enter_and_the_failed_pull_leaves_nothing(tmp_path: Path, how: str) -> None:
    with node(tmp_path, {PYTHON: _damaged(python_image(), how)}) as here:
        before = snapshot(tmp_path)
        with pytest.raises(ImageStoreError) as caught:
            here.store.pull(PYTHON)
        assert "sha256:" in str(caught.value)
        assert snapshot(tmp_path) == before
        assert list(here.store.list()) == []
        assert list(here.store.metadata.leases.find()) == []


def test_a_failed_pull_spares_what_another_image_needs(tmp_path: Path) -> None:
    bad = build_index(["linux/amd64", "linux/arm64", "windows(10.0.20348.1)/amd64"], shared=[layer("shared by all")])
    images = {PYTHON: python_image(), "registry.example/bad:1": _damaged(bad, "flipped")}
    with node(tmp_path, images) as here:
        kept = here.store.pull(PYTHON, runtime_handler=HYPERV)
        assert bad.manifests[2].layers[0] == kept.layers[0]
        before = snapshot(tmp_path)
        with pytest.raises(DigestMismatchError):
            here.store.pull("registry.example/bad:1", runtime_handler=PROCESS)
        assert snapshot(tmp_path) == before


def test_a_full_disk_is_named_and_gives_its_space_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with node(tmp_path) as here:
        before = snapshot(tmp_path)
        for name in ("write", "pwrite", "fsync", "fdatasync"):
            monkeypatch.setattr(os, name, full, raising=False)  # macOS has no fdatasync
        with pytest.raises(StoreFullError, match="No space left"):
            here.store.pull(PYTHON)
        monkeypatch.undo()
        assert snapshot(tmp_path) == before
        assert here.store.pull(PYTHON).layer_paths


@pytest.mark.parametrize("kind", ["pull", "import"])
def test_what_a_removal_was_given_is_not_for_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with node(tmp_path / "node") as here:
        here.store.pull(PYTHON)
        here.store.export_images([PYTHON], tmp_path / "saved.tar")
        here.store.remove(PYTHON, collect=True)
        database_of(here.store).database.ballast.release()
        real = os.statvfs(tmp_path)
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 999, 130, 130, *real[5:])))
        monkeypatch.setattr(here.store.metadata.leases, "create", lambda *_, **__: pytest.fail("a lease was made"))
        with pytest.raises(StoreFullError, match="what is left is for removing images"):
            here.store.pull(PYTHON) if kind == "pull" else here.store.import_images(tmp_path / "saved.tar")


def test_too_little_space_is_seen_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with node(tmp_path) as here:
        monkeypatch.setattr(here.store.content, "free_bytes", lambda: 10)
        with pytest.raises(StoreFullError, match=r"has room for 10$"):
            here.store.pull(PYTHON)
        layers = {part.digest for part in python_image().layers}
        assert all(here.registry.ledger.bytes_sent(digest) == 0 for digest in layers)


def test_a_disk_that_counts_no_blocks_takes_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ramfs, and some of FUSE: 0 free of 0."""
    with node(tmp_path) as here:
        real = os.statvfs(tmp_path)
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*real[:2], 0, 0, 0, *real[5:])))
        assert here.store.pull(PYTHON).layer_paths


def test_a_cancelled_pull_ends_and_can_be_repeated(tmp_path: Path) -> None:
    token = CancelToken()

    def stop(event: Event) -> None:
        if isinstance(event, Selected):
            token.cancel("enough")

    with node(tmp_path) as here:
        with pytest.raises(OperationCancelledError, match="enough"):
            here.store.pull(PYTHON, observer=stop, cancel=token)
        assert list(here.store.list()) == []
        assert here.store.pull(PYTHON).id == python_image().manifests[2].config.digest


def test_a_passed_deadline_is_told_apart_from_cancelling(tmp_path: Path) -> None:
    with node(tmp_path) as here, pytest.raises(DeadlineExceededError):
        here.store.pull(PYTHON, cancel=CancelToken(0.0))


def test_an_ingest_left_by_a_dead_process_is_continued(tmp_path: Path) -> None:
    part = python_image().manifests[2].layers[0]
    body = b"".join(python_image().blobs[part.digest].chunks())
    with node(tmp_path) as here:
        writer = here.store.content.writer(
            f"layer-{part.digest}", expected=part.digest, total=part.size, cancel=CancelToken()
        )
        with writer:
            writer.write(body[:-7])
        here.store.pull(PYTHON)
        assert here.registry.ledger.bytes_sent(part.digest) == 7


def test_a_damaged_leftover_costs_one_whole_fetch_and_no_failure(tmp_path: Path) -> None:
    part = python_image().manifests[2].layers[0]
    with node(tmp_path) as here:
        with here.store.content.writer(
            f"layer-{part.digest}", expected=part.digest, total=part.size, cancel=CancelToken()
        ) as writer:
            writer.write(b"\0" * (part.size - 7))
        image = here.store.pull(PYTHON)
        assert Digest.of(image.layer_paths[0].read_bytes()) == part.digest
