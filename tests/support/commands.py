"""Runs commands of the command line in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from imagestore.cli.main import main


class Commands:
    """Runs commands behind the same global options.

    Attributes:
        capture: of what they print.
        options: those.
        error: what the last one wrote to standard error.
    """

    def __init__(self, capture: pytest.CaptureFixture[str], *options: str) -> None:
        self.capture = capture
        self.options = list(options)
        self.error = ""

    def __call__(self, *arguments: str, status: int = 0) -> str:
        self.capture.readouterr()
        found = main([*self.options, *arguments])
        out, self.error = self.capture.readouterr()
        assert found == status, self.error
        return out

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self(*arguments, "-o", "json", status=status))
