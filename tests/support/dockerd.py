"""Debian's Docker Engine on folders and a socket of its own, without networks."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.patience import until
from tests.support.peers import need

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def dockerd(*options: str) -> Iterator[str]:
    """The socket of a running engine; needs root."""
    assert os.geteuid() == 0, "dockerd needs root; run these tests as root"
    # A socket's path may have 107 bytes, which pytest's folders can exceed.
    folder = Path(tempfile.mkdtemp(prefix="dockerd-"))
    path = folder / "docker.sock"
    arguments = [
        need("dockerd"),
        *("--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs"),
        *(f"--data-root={folder / 'data'}", f"--exec-root={folder / 'exec'}", f"--pidfile={folder / 'pid'}"),
        *(f"--host=unix://{path}", "--config-file=", "--insecure-registry=127.0.0.0/8"),
        *options,
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log)
    try:
        _wait_for(path, process, folder / "log")
        yield str(path)
    finally:
        process.terminate()
        process.wait(timeout=120)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, f"dockerd ended at once\n{log.read_text()}"
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
            return True
        return False

    until(answers, "dockerd takes connections")
