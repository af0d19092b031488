"""The content port: its contract over adapters, the documented example among them, and a store without blob files."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import pytest

from examples.adapters import MemoryContent, main
from imagestore import CancelToken, ImageStore
from imagestore.content import LocalContentStore
from imagestore.errors import UnsupportedError
from imagestore.testing import Registry, build_index, layer
from imagestore.testing.contracts import ContentContract

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagestore.content import ContentStore

NAME = "registry.example/app:1"
IMAGE = build_index(["linux/amd64", "linux/arm64"], seed="adapters", shared=[layer("a", files={"etc/x": b"x" * 1000})])


class TestLocalContent(ContentContract):
    @pytest.fixture
    def content(self, tmp_path: Path) -> ContentStore:
        return LocalContentStore(tmp_path / "content", tmp_path / "locks")


class TestMemoryContent(ContentContract):
    @pytest.fixture
    def content(self, tmp_path: Path) -> ContentStore:
        return MemoryContent(tmp_path)


@pytest.fixture
def content(tmp_path: Path) -> MemoryContent:
    return MemoryContent(tmp_path)


@pytest.fixture
def store(tmp_path: Path, content: MemoryContent) -> Iterator[ImageStore]:
    registry = Registry({NAME: IMAGE})
    with ImageStore(tmp_path / "store", content=content, transport=registry.transport) as opened:
        yield opened


def test_a_store_without_files(store: ImageStore, content: MemoryContent, tmp_path: Path) -> None:
    image = store.pull(NAME, platform="linux/amd64")
    assert store.pull(NAME, platform="linux/amd64").id == image.id == IMAGE.manifests[0].config.digest
    assert not (tmp_path / "store/content").exists()
    assert store.get(NAME).config.platform.os == "linux"
    assert not store.check().faults
    store.export_images([NAME], tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as archive:
        assert f"blobs/sha256/{image.id.encoded}" in archive.getnames()
    assert store.usage().blobs == len(list(content.walk()))
    report = store.unpack(NAME, tmp_path / "tree")
    assert report.entries > 0
    assert (tmp_path / "tree/etc/x").read_bytes() == b"x" * 1000
    store.remove(NAME)
    assert store.collect_garbage().digests
    assert list(content.walk()) == []
    store.import_images(tmp_path / "out.tar")
    assert store.get(NAME).id == image.id


def test_a_store_says_which_one_it_is(store: ImageStore, tmp_path: Path) -> None:
    assert repr(store) == f"<ImageStore {tmp_path / 'store'}>"


def test_damage_is_found_and_repaired(store: ImageStore, content: MemoryContent) -> None:
    image = store.pull(NAME, platform="linux/amd64")
    content.blobs[image.id] = (b"something else", 1.0)
    found = store.check()
    assert found.damaged == {image.id}
    store.repair(found)
    assert not store.check().faults


def test_what_needs_a_file_says_so(store: ImageStore) -> None:
    image = store.pull(NAME, platform="linux/amd64")
    with pytest.raises(UnsupportedError, match="no file"):
        image.layer_paths  # noqa: B018 - a property that raises


def test_a_pull_that_is_cancelled_is_resumed(store: ImageStore) -> None:
    with pytest.raises(Exception, match="cancelled"):
        store.pull(NAME, platform="linux/amd64", cancel=_cancelled())
    assert store.pull(NAME, platform="linux/amd64").id == IMAGE.manifests[0].config.digest


def _cancelled() -> CancelToken:
    token = CancelToken()
    token.cancel("cancelled")
    return token


def test_the_adapter_stays_open_for_the_caller_that_gave_it(tmp_path: Path, content: MemoryContent) -> None:
    transport = Registry({NAME: IMAGE}).transport
    with ImageStore(tmp_path / "store", content=content, transport=transport) as store:
        store.pull(NAME, platform="linux/amd64")
    assert content.exists(IMAGE.manifests[0].config.digest)
    with (
        ImageStore(tmp_path / "first") as owner,
        ImageStore(tmp_path / "second", content=content, metadata=owner.metadata) as borrower,
    ):
        borrower.close()
        assert list(owner.list()) == []


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert capsys.readouterr().out == "1 image, 4 blobs in memory\n4 blobs collected\n"
