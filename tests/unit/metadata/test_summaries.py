"""The quick list: what the records say, and nothing of a database that must be opened in full first."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from imagestore import Descriptor, Digest, Platform
from imagestore.metadata.records import ImageRecord
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.metadata.sqlite.summaries import ImageSummary, read_summaries
from imagestore.oci.media_types import OCI_MANIFEST

IMAGE = Digest.of(b"config")
MANIFEST = Descriptor(OCI_MANIFEST, Digest.of(b"manifest"), 10)
WINDOWS = Platform("windows", "amd64", "", "10.0.17763.1", ("win32k",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    for reference, handler, platform in (
        ("registry.example/b:1", "runc", Platform("linux", "arm", "v7")),
        ("registry.example/a:1", "runhcs", WINDOWS),
    ):
        roots = (MANIFEST.digest,)
        store.images.put(ImageRecord(reference, handler, MANIFEST, MANIFEST, IMAGE, platform, "", roots, 33), {})
    store.close()
    return tmp_path / "metadata.db"


def test_summaries_are_in_order_and_as_recorded(path: Path) -> None:
    assert read_summaries(path) == [
        ImageSummary("registry.example/a:1", "runhcs", str(IMAGE), WINDOWS, 33),
        ImageSummary("registry.example/b:1", "runc", str(IMAGE), Platform("linux", "arm", "v7"), 33),
    ]


def test_summaries_include_what_is_only_in_the_log(path: Path) -> None:
    with_log = SqliteMetadataStore(path)
    with_log.images.remove([("registry.example/a:1", "runhcs")])
    found = read_summaries(path)
    assert found is not None
    assert [each.reference for each in found] == ["registry.example/b:1"]
    with_log.close()


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA user_version = 1",
        "PRAGMA user_version = 999",
        "PRAGMA application_id = 7",
        "UPDATE image SET platform = 'no json'",
        "UPDATE image SET platform = '[1]'",
        "DROP TABLE image",
    ],
)
def test_what_needs_more_than_reading_is_left_to_the_store(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()
    assert read_summaries(path) is None


def test_a_database_that_is_missing_or_no_database_is_left_to_the_store(tmp_path: Path) -> None:
    assert read_summaries(tmp_path / "metadata.db") is None
    assert list(tmp_path.iterdir()) == [], "and not made"
    (tmp_path / "metadata.db").write_bytes(b"no database" * 1000)
    assert read_summaries(tmp_path / "metadata.db") is None
