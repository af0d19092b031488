"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.node.eviction import DiskUsage
from imagestore.testing import RegistryServer, build_index, layer
from tests.support.linux_node import APP, CONFIG
from tests.support.node import PYTHON, python_image
from tests.unit.cli.lines import Line


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    images = {PYTHON: python_image(), "registry.example/library/linux:1": build_index(["linux/amd64"])}
    with RegistryServer(images) as server:
        yield Line(tmp_path, capsys, server)


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A served image for both handlers of a Linux node, whose store and configuration commands find by themselves."""
    (tmp_path / "config.toml").write_text(CONFIG)
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("IMAGESTORE_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    # A collection that is due on the disk of this machine would be none of the test's.
    monkeypatch.setattr("imagestore.node.image_gc.disk_of_images", lambda _service: DiskUsage(10**12, 10**12 // 2))
    index = build_index(("linux/amd64", "linux/arm64"), seed="app", shared=[layer("shared")])
    with RegistryServer({APP: index}) as running:
        yield running.server.reference(APP)
