"""What a pull loads while it awaits the registry."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from imagestore import ImageStore
from imagestore.documents import decode
from imagestore.pull import ahead
from imagestore.testing import RegistryServer, build_image

if TYPE_CHECKING:
    from pathlib import Path

NAME = "registry.example/library/small:1"
PARTS = ("before_documents", "before_layers")


def test_only_a_pull_that_fetches_loads_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    for part in PARTS:
        monkeypatch.setattr(ahead, part, lambda part=part: loaded.append(part))
    with RegistryServer({NAME: build_image("linux/amd64")}) as server, ImageStore(tmp_path) as store:
        reference = server.server.reference(NAME)
        store.pull(reference, platform="linux/amd64")
        assert loaded == [*PARTS]
        store.pull(reference, platform="linux/amd64")
        assert loaded == [*PARTS]


def test_what_comes_next_is_loaded() -> None:
    code = """
import sys
from imagestore.pull import ahead
def loaded(*names):
    return [name in sys.modules for name in names]
nexts = "imagestore.pull.resolved", "_hashlib", "imagestore.content.filling", "imagestore.content.ingest"
print(loaded(*nexts))
ahead.before_documents()
print(loaded(*nexts))
ahead.before_layers()
print(loaded(*nexts))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[False, False, False, False]",
        "[True, True, False, False]",
        "[True, True, True, True]",
    ]


@pytest.mark.parametrize("fault", [OSError(24, "Too many open files"), ImportError("cannot import")])
def test_what_cannot_be_loaded_yet_is_no_error(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    asked: list[str] = []

    def refuse(schema: str) -> None:
        asked.append(schema)
        raise fault

    monkeypatch.setattr(decode, "prepare", refuse)
    ahead.before_documents()
    ahead.before_layers()
    assert asked == ["manifest", "image-config"]
