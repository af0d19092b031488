"""Documents as selection reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore.cancel import CancelToken
from imagestore.errors import OperationCancelledError
from imagestore.pull.sources import Documents
from tests.support.node import PYTHON, node


def test_work_that_is_cancelled_reads_no_more_of_the_store(tmp_path: Path) -> None:
    """An index may list thousands of manifests whose configs have to be opened."""
    cancel = CancelToken()
    with node(tmp_path) as here:
        target = here.store.pull(PYTHON).target
        documents = Documents(here.store.content, None, None, cancel)
        cancel.cancel("enough")
        with pytest.raises(OperationCancelledError, match="enough"):
            documents.index(target)
