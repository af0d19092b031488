"""A folder for the bodies of tapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore.testing.tapes.blob_folder import BlobFolder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def blobs(tmp_path: Path) -> BlobFolder:
    return BlobFolder(str(tmp_path / "blobs"))
