"""An SQLite that is too old is named before anything is made."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

import imagestore
from imagestore.errors import PreconditionError
from imagestore.util.sqlite_version import check_sqlite


def test_an_old_sqlite_is_refused_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(PreconditionError, match=r"SQLite 3\.34\.1 is too old: SQLite 3\.37") as caught:
        imagestore.open(tmp_path / "store")
    assert sys.executable in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_the_oldest_that_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 0))
    check_sqlite()
