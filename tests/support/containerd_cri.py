"""Debian's containerd with its CRI plugin, on a folder and a socket of its own; no network plugin.

It keeps its content itself, or in our store, configured as the documentation says. It can run pods on the node's own
network, and be killed, started again and wiped.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from imagestore.cri import CriImageService
from imagestore.errors import ImageStoreError
from tests.support.kubelet import remove_all_pods
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.peers import need
from tests.support.server import short_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.platforms import Platform

_CONFIG: Final = """
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
{cri}
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
{handlers}
"""
#: Two handlers, both with runc; images of the second one are for another platform.
_HANDLERS: Final = """
default_runtime_name = "{host}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{host}]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{guest}]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{guest}.guest_platform]
{guest_platform}
"""
_ISOLATED: Final = """
[plugins."io.containerd.metadata.v1.bolt"]
content_sharing_policy = "isolated"
"""
HOST_HANDLER: Final = "host"
GUEST_HANDLER: Final = "guest"

_PAGE: Final = Path(__file__).parents[2] / "docs" / "run-a-node" / "containerd.md"
_SOCKET_OF_PAGE: Final = "/run/imagestore-containerd/content.sock"


def readme_proxy(socket: Path) -> str:
    """The documentation's configuration for a containerd that keeps its content here, with another socket."""
    (block,) = [
        block
        for block in re.findall(r"^```toml\n(.*?)^```", _PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        if "[proxy_plugins.imagestore]" in block
    ]
    assert block.count(_SOCKET_OF_PAGE) == 1
    return str(block.replace(_SOCKET_OF_PAGE, str(socket)))


@dataclass(frozen=True)
class Pods:
    """How a containerd runs pods.

    Attributes:
        sandbox_image: its name.
        guest_platform: the platform of images for the second handler.
        snapshotter: ``overlayfs`` or ``native``.
        is_isolated: content of one namespace isn't known in another before it was sent there.
    """

    sandbox_image: str
    guest_platform: Platform
    snapshotter: str = "overlayfs"
    is_isolated: bool = False

    @property
    def tables(self) -> tuple[str, str]:
        """What the configuration has more in CRI's table, and in that of its containerd."""
        folders = f'sandbox_image = "{self.sandbox_image}"'
        guest = {"OS": self.guest_platform.os, "Architecture": self.guest_platform.architecture}
        variant = {"Variant": self.guest_platform.variant} if self.guest_platform.variant else {}
        lines = [f'{key} = "{value}"' for key, value in {**guest, **variant}.items()]
        handlers = _HANDLERS.format(host=HOST_HANDLER, guest=GUEST_HANDLER, guest_platform="\n".join(lines))
        return folders, handlers + (_ISOLATED if self.is_isolated else "")


class CriContainerd:
    """One that is started, killed, started again, and wiped.

    Args:
        folder: of its own; short, since its sockets are there.
        content: socket of the proxy content store that it uses instead of its own.
        pods: if it is to run some; needs root.
    """

    def __init__(self, folder: Path, *, content: Path | None = None, pods: Pods | None = None) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.socket = folder / "c.sock"
        self.endpoint = f"unix://{self.socket}"
        self.log_path = folder / "log"
        self.content = folder / "root" / "io.containerd.content.v1.content"
        proxy = folder / "proxy.toml"
        if content is not None:
            proxy.write_text(readme_proxy(content))
        cri, handlers = pods.tables if pods is not None else ("", "")
        text = _CONFIG.format(
            folder=folder,
            imports=f'"{proxy}"' if content is not None else "",
            cri=cri,
            snapshotter=pods.snapshotter if pods is not None else "native",
            handlers=handlers,
        )
        self.config.write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until its CRI answers."""
        with open(self.log_path, "ab") as log:
            command = [need("containerd"), "--config", str(self.config)]
            self._process = process = subprocess.Popen(command, stdout=log, stderr=log)

        def answers() -> bool:
            assert process.poll() is None, self.log_path.read_text()[-2000:]
            with contextlib.suppress(ImageStoreError), CriImageService(self.endpoint, timeout_seconds=20) as client:
                client.version()
                return True
            return False

        until(answers, "containerd's CRI answers")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal; containers run on."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        self.stop(signal.SIGKILL)

    def wipe(self) -> None:
        """Remove its pods, end it, and delete all that it knows; start it again afterwards."""
        if self._process is None:
            self.start()
        remove_all_pods(self.endpoint)
        self.stop()
        # A mount below would be deleted in its place.
        mounts = Path("/proc/self/mountinfo").read_text()
        assert str(self.folder) not in mounts, [line for line in mounts.splitlines() if str(self.folder) in line]
        shutil.rmtree(self.folder / "root")
        shutil.rmtree(self.folder / "state")

    def ctr(self, *arguments: str) -> str:
        """Run ctr in CRI's namespace."""
        command = [need("ctr"), "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def images(self) -> dict[str, str]:
        """The digest of each image's target, by name."""
        lines = [line.split() for line in self.ctr("images", "ls").splitlines()[1:]]
        return {fields[0]: fields[2] for fields in lines}

    def blobs(self) -> set[str]:
        """Every digest in its content store."""
        return set(self.ctr("content", "ls", "-q").split())

    def leases(self) -> set[str]:
        """Ids of all leases."""
        return set(self.ctr("leases", "ls", "-q").split())

    def snapshots(self, snapshotter: str) -> dict[str, str]:
        """The kind of each snapshot, by key: ``Committed``, ``Active`` or ``View``."""
        lines = [line.split() for line in self.ctr("snapshots", "--snapshotter", snapshotter, "ls").splitlines()[1:]]
        return {fields[0]: fields[-1] for fields in lines}


@contextlib.contextmanager
def pod_containerd(pods: Pods, *, content: Path | None = None) -> Iterator[CriContainerd]:
    """A containerd that runs pods; they are removed at the end. Skips the test where that isn't possible.

    Args:
        pods: how.
        content: socket of the proxy content store that it uses instead of its own; the caller starts it.
    """
    if os.geteuid() != 0:
        pytest.skip("running containers needs root")
    need("runc")
    with short_folder() as folder:
        running = CriContainerd(folder, content=content, pods=pods)
        if content is None:
            running.start()
        try:
            yield running
        finally:
            running.wipe()


@contextlib.contextmanager
def containerd_cri(content: Path | None = None) -> Iterator[str]:
    """The endpoint of a containerd that runs no pods.

    Args:
        content: socket of the proxy content store that it uses instead of its own.
    """
    with short_folder() as folder:
        running = CriContainerd(folder, content=content)
        running.start()
        try:
            yield running.endpoint
            own = folder / "root" / "io.containerd.content.v1.content"
            assert own.exists() == (content is None), "its content is not where the configuration says"
        finally:
            running.stop()
