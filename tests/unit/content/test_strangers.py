"""Files in the folder of blobs that no digest names: they are nobody's content and nobody's garbage."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from imagestore.content.ingests import ingest_name
from imagestore.content.local import LocalContentStore
from tests.unit.content.test_local import put


@pytest.mark.parametrize("name", ["0" * 63, "0" * 65, "g" * 64, "A" * 64, "0" * 60 + ".tmp", "\u0660" * 64])
def test_what_no_digest_names_is_not_listed_and_not_deleted(tmp_path: Path, name: str) -> None:
    store = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    digest = put(store, b"hello")
    stranger = store.path(digest).with_name(name)
    stranger.write_bytes(b"stranger")
    assert [info.digest for info in store.walk()] == [digest]
    assert list(store.names()) == [str(digest)]
    with store.deleter() as files:
        assert files.delete(f"sha256:../sha256/{name}") is None
        assert files.delete(str(digest)) == 5
    assert stranger.read_bytes() == b"stranger"


@pytest.mark.parametrize("name", ["0" * 63, "0" * 65, "../sha256/" + "0" * 54, "." * 64])
def test_a_label_that_names_what_was_never_content_deletes_nothing(tmp_path: Path, name: str) -> None:
    """Labels come from clients, and a collection asks about what they name."""
    store = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    folder = store.path(put(store, b"hello")).parent
    (folder / name.rpartition("/")[2]).write_bytes(b"stranger")
    before = sorted(path.name for path in folder.iterdir())
    with store.deleter() as files:
        assert files.delete(f"sha256:{name}") is None
        assert files.delete(f"md5:{name}") is None
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("has_name", [True, False])
def test_a_link_among_the_ingests_is_none_and_what_it_points_at_stays(tmp_path: Path, has_name: bool) -> None:
    store = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("data", "ref") if has_name else ("data",):
        (outside / name).write_text("r")
    (store.root / "ingest" / ingest_name("r")).symlink_to(outside)
    assert list(store.stale_ingests(math.inf)) == []
    assert (outside / "data").read_text() == "r"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_in_a_blobs_place_goes_and_what_it_points_at_stays(tmp_path: Path, is_there: bool) -> None:
    store = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    digest = put(store, b"hello")
    link, outside = store.path(digest), tmp_path / "outside"
    link.unlink()
    link.symlink_to(outside)
    if is_there:
        outside.write_bytes(b"stranger")
    with store.deleter() as files:
        files.delete(str(digest))
    assert not link.is_symlink()
    assert outside.exists() == is_there
