"""Runs commands of the command line in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imagestore.cli.main import main
from imagestore.testing import RegistryServer
from tests.support.node import CONFIG, PYTHON

HOST_TABLE = """
[plugins."io.containerd.cri.v1.images".runtime_platforms.runhcs-wcow-process]
platform = "windows(10.0.20348)/amd64"
"""


class Line:
    """Runs commands in this process."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str], server: RegistryServer) -> None:
        self.root = folder / "store"
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG + HOST_TABLE)
        self._capture = capture
        self.server = server
        self.python = server.server.reference(PYTHON)

    def __call__(self, *arguments: str, status: int = 0) -> str:
        self._capture.readouterr()
        found = main(["--root", str(self.root), "--config", str(self.config), *arguments])
        self.captured = self._capture.readouterr()
        assert found == status, self.captured.err
        return self.captured.out

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self(*arguments, "-o", "json", status=status))

    @property
    def error(self) -> str:
        return self.captured.err
