"""Long lists of our two databases, which are read page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.testing.contracts import MetadataContract

if TYPE_CHECKING:
    import pytest

    from imagestore import MetadataStore


class PagedContract(MetadataContract):
    """The metadata port's contract, and what a list in pages is."""

    def test_a_walk_is_read_in_pages(self, metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("imagestore.metadata.images.PAGE_ROWS", 2)
        self.test_a_walk_finds_what_is_listed(metadata)
        walk = metadata.images.walk()
        first = [next(walk), next(walk)]
        metadata.images.remove([(each.reference, each.handler) for each in metadata.images.find()[2:]])
        assert [*first, *walk] == metadata.images.find()
