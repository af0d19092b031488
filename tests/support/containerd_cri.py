"""Debian's containerd with its CRI plugin, on a folder and a socket of its own; no network plugin, no sandboxes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from imagestore.cri.client import CriImageService
from imagestore.errors import ImageStoreError
from tests.support.peers import need

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIG = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"
]
[grpc]
address = "{folder}/c.sock"
[ttrpc]
address = "{folder}/t.sock"
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
"""


@contextlib.contextmanager
def containerd_cri() -> Iterator[str]:
    """The endpoint of a running containerd."""
    folder = Path(tempfile.mkdtemp(prefix="ctd-"))
    config, endpoint = folder / "config.toml", f"unix://{folder}/c.sock"
    config.write_text(_CONFIG.format(folder=folder))
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([need("containerd"), "--config", str(config)], stdout=log, stderr=log)
    try:
        _wait_for(endpoint, process, folder / "log")
        yield endpoint
    finally:
        process.terminate()
        process.wait(timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(ImageStoreError), CriImageService(endpoint, timeout_seconds=2) as client:
            client.version()
            return
        time.sleep(0.05)
    raise AssertionError(f"containerd's CRI did not answer within 10 seconds\n{log.read_text()}")
