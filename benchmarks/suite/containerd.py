"""A private containerd: root in a given folder, sockets in a short one, and what its daemon spends."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suite.cost import peak_mebibytes, processor_seconds

_CONFIG = """
version = 2
root = "{root}"
state = "{sockets}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{sockets}/c.sock"
[ttrpc]
address = "{sockets}/t.sock"
"""


@dataclass(frozen=True, slots=True)
class Containerd:
    """A running one.

    Attributes:
        socket: where it listens.
        process: its process id.
    """

    socket: str
    process: int

    @property
    def ctr(self) -> list[str]:
        """How its client is started."""
        return ["ctr", "--address", self.socket, "--namespace", "bench"]

    @property
    def processor_seconds(self) -> float:
        """CPU seconds that the daemon has spent so far."""
        return processor_seconds(self.process)

    @property
    def peak_mebibytes(self) -> float:
        """Most memory that the daemon had so far."""
        return peak_mebibytes(self.process)


def is_possible() -> bool:
    """Whether Debian's containerd is here and may be started."""
    return os.geteuid() == 0 and all(shutil.which(program) for program in ("containerd", "ctr"))


@contextlib.contextmanager
def containerd(folder: Path) -> Iterator[Containerd]:
    """Start one whose root is below a folder.

    Raises:
        RuntimeError: it doesn't come up.
    """
    # A socket's path may have 107 bytes, a folder on some disk may have more.
    sockets = Path(tempfile.mkdtemp(prefix="ctd-"))
    config = sockets / "config.toml"
    config.write_text(_CONFIG.format(root=folder / "containerd", sockets=sockets))
    try:
        with open(sockets / "log", "wb") as log:
            process = subprocess.Popen(["containerd", "--config", str(config)], stdout=log, stderr=log)
        try:
            running = Containerd(f"{sockets}/c.sock", process.pid)
            _wait_for(running, process, sockets / "log")
            yield running
        finally:
            process.terminate()
            process.wait(timeout=60)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def _wait_for(running: Containerd, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        if process.poll() is not None:
            break
        if subprocess.run([*running.ctr, "version"], capture_output=True, timeout=60, check=False).returncode == 0:
            return
        time.sleep(0.05)
    raise RuntimeError(f"containerd did not start\n{log.read_text()[-2000:]}")
