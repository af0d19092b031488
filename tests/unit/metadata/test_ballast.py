"""The space kept back is given up by whatever removes, and by nothing else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagestore.digest import Digest
from imagestore.metadata.sqlite import SqliteMetadataStore

ONE = Digest.of(b"one")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteMetadataStore]:
    """One whose disk became full."""
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        store.create_lease("lease", lifetime_seconds=60)
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
        yield store


@pytest.mark.parametrize(
    "remove",
    [
        lambda store: store.delete_lease("lease"),
        lambda store: store.unlease_content("lease", [ONE]),
        lambda store: store.remove_images([("registry.example/one:1", "kata")]),
        lambda store: store.drop_images([("registry.example/one:1", "kata")]),
        lambda store: store.drop_everything(store.everything(10)),
        lambda store: store.remove_named_image("moby", "one"),
        lambda store: store.forget_record("moby", ONE),
        lambda store: store.expire(),
    ],
)
def test_a_removal_gives_it_up(
    store: SqliteMetadataStore, tmp_path: Path, remove: Callable[[SqliteMetadataStore], object]
) -> None:
    store.lease_content("lease", [ONE])
    assert (tmp_path / "ballast").exists()
    remove(store)
    assert not (tmp_path / "ballast").exists()
    store.tidy()
    assert (tmp_path / "ballast").exists()
