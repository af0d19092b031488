"""What an archive may make an import hold in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import ImportOptions
from imagestore.errors import DocumentError
from imagestore.testing import build_index
from tests.support.node import PLATFORMS, PYTHON, node, python_image
from tests.unit.store.archive.making import layout_files, write

OTHER = "registry.example/library/other:1"


def test_the_documents_of_all_images_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = {PYTHON: python_image(), OTHER: build_index(PLATFORMS, seed="other")}
    archive = write(tmp_path / "two.tar", layout_files(images))
    # The index, the manifest and the config of one image take some ten thousand bytes.
    monkeypatch.setattr("imagestore.store.archive.importing.MAX_DOCUMENTS_BYTES", 12_000)
    with node(tmp_path / "store") as here:
        with pytest.raises(DocumentError, match="take more than 12000 bytes"):
            here.store.import_images(archive)
        assert list(here.store.list()) == []
        for name in images:
            here.store.import_images(archive, options=ImportOptions(images=(name,)))
        assert len(list(here.store.list())) == 2


def test_the_documents_of_one_image_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write(tmp_path / "one.tar", layout_files({PYTHON: python_image()}))
    monkeypatch.setattr("imagestore.store.pull.sources.MAX_HELD_BYTES", 12_000)
    with node(tmp_path / "store") as here:
        with pytest.raises(DocumentError, match="that take more than 12000 bytes"):
            here.store.import_images(archive, options=ImportOptions(all_platforms=True))
        here.store.import_images(archive)
