"""Documents as selection reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore.cancel import CancelToken
from imagestore.errors import OperationCancelledError, SizeMismatchError
from imagestore.pull.sources import Documents
from imagestore.values import replace
from tests.support.node import PYTHON, node


def test_a_document_of_another_size_than_its_descriptor_says_is_refused(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        target = here.store.pull(PYTHON).target
        documents = Documents(here.store.content, None, None, CancelToken())
        with pytest.raises(SizeMismatchError):
            documents.raw(replace(target, size=target.size + 1))
        assert len(documents.raw(target)) == target.size


def test_work_that_is_cancelled_reads_no_more_of_the_store(tmp_path: Path) -> None:
    """An index may list thousands of manifests whose configs have to be opened."""
    cancel = CancelToken()
    with node(tmp_path) as here:
        target = here.store.pull(PYTHON).target
        documents = Documents(here.store.content, None, None, cancel)
        cancel.cancel("enough")
        with pytest.raises(OperationCancelledError, match="enough"):
            documents.index(target)
