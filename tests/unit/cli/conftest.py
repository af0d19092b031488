"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.testing import RegistryServer, build_index
from tests.support.node import PYTHON, python_image
from tests.unit.cli.lines import Line


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    images = {PYTHON: python_image(), "registry.example/library/linux:1": build_index(["linux/amd64"])}
    with RegistryServer(images) as server:
        yield Line(tmp_path, capsys, server)
