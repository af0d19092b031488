"""What a fetcher does with bytes that are not what their descriptor says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

import pytest

from imagestore.cancel import CancelToken
from imagestore.content.local import LocalContentStore
from imagestore.descriptor import Descriptor
from imagestore.digest import Digest
from imagestore.errors import DigestMismatchError, IntegrityError, SizeMismatchError
from imagestore.pull.fetch import Fetcher
from imagestore.reference import Reference

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Unasked:
    """An origin that must not be asked."""

    def document(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("asked for a document")

    def blob(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("asked for a blob")


@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize(("raw", "size", "failure"), [(b"{}", 3, SizeMismatchError), (b"[]", 2, DigestMismatchError)])
def test_damaged_bytes_at_hand_are_not_fetched_again(
    tmp_path: Path, raw: bytes, size: int, failure: type[IntegrityError], *, is_beside: bool
) -> None:
    store, cancel = LocalContentStore(tmp_path / "content", tmp_path / "locks"), CancelToken()
    descriptor = Descriptor(MANIFEST, Digest.of(b"{}"), size)
    with store.gathering(cancel) as gathering:
        fetcher = Fetcher(
            content=store,
            client=Unasked(),
            reference=Reference.parse("registry.example/app:1"),
            observer=lambda _: None,
            keep_alive=lambda: None,
            gathering=gathering,
        )
        with pytest.raises(failure), fetcher.flow(cancel) as flow:
            fetcher.keep(descriptor, raw, cancel=cancel, flow=flow if is_beside else None)
        assert os.listdir(tmp_path / "locks") == []
    assert not store.exists(descriptor.digest)
