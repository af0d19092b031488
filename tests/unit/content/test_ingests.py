"""The notes of an ingest's folder: what is written is read back, and what nobody of ours wrote stops nobody."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from imagestore.content.ingests import now_text, read_remains, read_status, remove_ingest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ref").write_text("r")
    (tmp_path / "data").write_bytes(b"hello")
    os.utime(tmp_path / "data", (50, 50))
    return tmp_path


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (100 * 10**9, "1970-01-01T00:01:40Z"),
        (100 * 10**9 + 500_000_000, "1970-01-01T00:01:40.5Z"),
        (100 * 10**9 + 20, "1970-01-01T00:01:40.00000002Z"),
    ],
)
def test_a_moment_is_noted_as_go_writes_it_and_read_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch, nanoseconds: int, text: str
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: nanoseconds)
    assert now_text() == text
    (folder / "startedat").write_text(now_text())
    (folder / "updatedat").write_text(now_text())
    status = read_status(folder)
    assert status is not None
    assert (status.started_at, status.updated_at) == (nanoseconds / 1e9, nanoseconds / 1e9)


def test_what_came_after_the_last_note_counts_as_written_then(folder: Path) -> None:
    (folder / "updatedat").write_text("1970-01-01T00:00:40Z")
    status = read_status(folder)
    assert status is not None
    assert (status.started_at, status.updated_at) == (50.0, 50.0)


@pytest.mark.parametrize("text", ["9" * 20, "9" * 5000, "-1", "", "1.5"])
def test_a_total_that_is_none_is_unknown(folder: Path, text: str) -> None:
    (folder / "total").write_text(text)
    status = read_status(folder)
    assert status is not None
    assert (status.offset, status.total) == (5, 0)


def test_a_folder_without_a_name_was_touched_with_the_last_of_its_files(folder: Path) -> None:
    (folder / "ref").unlink()
    (folder / "total").write_text("5")
    os.utime(folder / "total", (70, 70))
    os.utime(folder, (60, 60))
    remains = read_remains(folder)
    assert remains is not None
    assert (remains.ref, remains.offset, remains.started_at, remains.updated_at) == (folder.name, 6, 60.0, 70.0)


def test_the_data_goes_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is killed meanwhile leaves a folder that still tells how much it holds."""
    unlink, gone = os.unlink, []

    def noted(path: Path) -> None:
        unlink(path)
        gone.append(path.name)

    monkeypatch.setattr(os, "unlink", noted)
    for name in ("startedat", "updatedat", "total"):
        (folder / name).touch()
    remove_ingest(folder)
    assert (gone[0], gone[-1], folder.exists()) == ("ref", "data", False)


def test_what_a_link_in_an_ingest_points_at_is_none_of_it(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "remains", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "blob").write_bytes(b"12345" * 1000)
    (folder / "sha256").symlink_to(elsewhere)
    remains = read_remains(folder)
    assert remains is not None
    assert remains.offset < 1000
