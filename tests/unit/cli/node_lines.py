"""What the tests of the node commands share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from imagestore.cli.main import main

if TYPE_CHECKING:
    import pytest

#: How a kubelet's file begins.
KUBELET = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Exit status and JSON of a node command."""
    status = main(["node", *arguments, "--output", "json"])
    return status, json.loads(capsys.readouterr().out)
