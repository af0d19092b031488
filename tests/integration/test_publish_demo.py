"""``make demo-node``: what it shows, and what it says where it can't run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.node_demo import why_not
from tests.support.peers import need
from tests.support.runnable_images import GUEST, HOST

pytestmark = pytest.mark.integration

DEMO = Path(__file__).parents[2] / "examples" / "node_demo.py"


def test_the_demo_runs_two_programs_twice() -> None:
    if os.geteuid() != 0:
        pytest.skip("running containers needs root")
    for program in ("containerd", "runc"):
        need(program)
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    shown = [line.rpartition("writes: ")[2] for line in done.stdout.splitlines() if "writes: " in line]
    assert shown == [HOST, GUEST] * 2


def test_the_demo_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "this is riscv64" in why_not("riscv64")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in why_not("amd64")
    monkeypatch.setenv("PATH", "")
    assert "apt-get install containerd runc" in why_not("arm64")
