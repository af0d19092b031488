"""Runs commands on a store of its own, next to a registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore.testing import RegistryServer
from tests.support.commands import Commands
from tests.support.node import CONFIG, PYTHON

HOST_TABLE = """
[plugins."io.containerd.cri.v1.images".runtime_platforms.runhcs-wcow-process]
platform = "windows(10.0.20348)/amd64"
"""


class Line(Commands):
    """Runs commands on one store with one configuration."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str], server: RegistryServer) -> None:
        self.root = folder / "store"
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG + HOST_TABLE)
        super().__init__(capture, "--root", str(self.root), "--config", str(self.config))
        self.server = server
        self.python = server.server.reference(PYTHON)
