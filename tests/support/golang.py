"""Go programs of the tests, built with what Debian has."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.peers import need

TOP = Path(__file__).parents[2]
_PROGRAMS = TOP / "tests" / "integration"
_DEBIANS_PACKAGES = "/usr/share/gocode"


def compile_program(name: str, folder: Path) -> Path:
    """Compile ``tests/integration/NAME``; packages below ``folder/go`` are found besides Debian's."""
    program = folder / name
    environment = {
        **os.environ,
        "GO111MODULE": "off",
        "GOPATH": f"{folder}/go:{_DEBIANS_PACKAGES}",
        "GOFLAGS": "",
        "GOCACHE": f"{folder}/cache",
    }
    run([need("go"), "build", "-o", str(program), str(_PROGRAMS / name / "main.go")], environment)
    return program


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """A step of a build, which must succeed."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
