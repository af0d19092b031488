"""Documents as selection reads them."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from imagestore import CancelToken, Descriptor, Digest
from imagestore.errors import OperationCancelledError, SizeMismatchError
from imagestore.oci.media_types import OCI_INDEX
from imagestore.store.pull.sources import Documents
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


def test_what_is_known_of_documents_counts_in_addition_to_their_bytes() -> None:
    """Four mebibytes of empty annotations are kept as forty: by their bytes alone sixty indexes would be few."""
    raw = b'{"annotations":{' + b",".join(b'"%05x":""' % number for number in range(50_000)) + b"}}"
    documents = Documents(None, None, None, CancelToken())
    documents.remember(Descriptor(OCI_INDEX, Digest.of(raw), len(raw)), raw)
    tracemalloc.start()
    try:
        kept = json.loads(raw)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(kept["annotations"]) == 50_000
    assert taken + len(raw) < documents.held_bytes < 3 * taken
