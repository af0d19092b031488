"""Debian's containerd with its CRI plugin, on a folder and a socket of its own; no network plugin, no sandboxes.

It keeps its content itself, or in our store, configured as the documentation says.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from imagestore.cri.client import CriImageService
from imagestore.errors import ImageStoreError
from tests.support.patience import until
from tests.support.peers import need

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIG = """
version = 2
imports = [{imports}]
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


_PAGE: Final = Path(__file__).parents[2] / "docs" / "run-a-node" / "containerd.md"
_SOCKET_OF_PAGE: Final = "/run/imagestore/content.sock"


def readme_proxy(socket: Path) -> str:
    """The documentation's configuration for a containerd that keeps its content here, with another socket."""
    (block,) = [
        block
        for block in re.findall(r"^```toml\n(.*?)^```", _PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        if "[proxy_plugins.imagestore]" in block
    ]
    assert block.count(_SOCKET_OF_PAGE) == 1
    return str(block.replace(_SOCKET_OF_PAGE, str(socket)))


@contextlib.contextmanager
def containerd_cri(content: Path | None = None) -> Iterator[str]:
    """The endpoint of a running containerd.

    Args:
        content: socket of the proxy content store that it uses instead of its own.
    """
    folder = Path(tempfile.mkdtemp(prefix="ctd-"))
    config, endpoint = folder / "config.toml", f"unix://{folder}/c.sock"
    proxy = folder / "proxy.toml"
    if content is not None:
        proxy.write_text(readme_proxy(content))
    config.write_text(_CONFIG.format(folder=folder, imports=f'"{proxy}"' if content is not None else ""))
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([need("containerd"), "--config", str(config)], stdout=log, stderr=log)
    try:
        _wait_for(endpoint, process, folder / "log")
        yield endpoint
        own = folder / "root" / "io.containerd.content.v1.content"
        assert own.exists() == (content is None), "its content is not where the configuration says"
    finally:
        process.terminate()
        process.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(ImageStoreError), CriImageService(endpoint, timeout_seconds=20) as client:
            client.version()
            return True
        return False

    until(answers, "containerd's CRI answers")
