"""What the tests of imports share."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import ImportOptions
from imagestore.errors import ImageStoreError
from imagestore.testing import Image
from tests.support.node import Node, python_image, snapshot

KATA = ImportOptions(("kata",))
ALL = ImportOptions(all_handlers=True)


def refused(here: Node, archive: Path, options: ImportOptions, kind: type[ImageStoreError], words: str) -> None:
    """An import fails with this error and leaves records, blobs, ingests and leases as they were."""
    before = (snapshot(here.store.root), [image.record for image in here.store.list()])
    with pytest.raises(kind) as caught:
        here.store.import_images(archive, options=options)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert (snapshot(here.store.root), [image.record for image in here.store.list()]) == before
    assert list(here.store.metadata.leases.find()) == []


def image() -> Image:
    return python_image()
