"""A node whose pods run what imagestore publishes: containerd, ``imagestore serve``, and the kubelet's stand-in."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from imagestore import platforms
from imagestore.publish import ContentWay
from tests.support.containerd_client import Client
from tests.support.containerd_cri import GUEST_HANDLER, HOST_HANDLER, CriContainerd, Pods, pod_containerd
from tests.support.kubelet import Kubelet
from tests.support.patience import until
from tests.support.runnable_images import GUEST, HOST
from tests.support.server import Server, short_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from tests.support.kubelet import Container
    from tests.support.peers import DockerRegistry

#: Makes a way impossible by what the server sees of containerd's folder: a mount of its own can't be linked into.
_SEEN: Final = {
    ContentWay.OWN_FILE: 'mount --bind "$0" "$0"',
    ContentWay.SENT: 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"',
}
_OUR_LEASES: Final = "imagestore-"


class PodNode:
    """One node; the server is started by start().

    Args:
        folder: of the server, short.
        containerd: runs the pods.
        registry: has ``app:1`` for both handlers, and the sandbox image ``pause:1``.
        way: the cheapest by which layers can come into containerd.
    """

    def __init__(
        self, folder: Path, containerd: CriContainerd, registry: DockerRegistry, way: ContentWay = ContentWay.LINKED
    ) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.log_path = folder / "log"
        self.containerd = containerd
        self.registry = registry
        self.way = way
        self.app = f"{registry.address}/app:1"
        self.pause = f"{registry.address}/pause:1"
        self.endpoint = f"unix://{folder}/k.sock"
        self.kubelet = Kubelet(self.endpoint, containerd.endpoint)
        #: Asks containerd for images, too, as without imagestore.
        self.direct = Kubelet(containerd.endpoint)
        self._server: Server | None = None
        self._is_usual = False
        self._log_begin = 0

    @property
    def server(self) -> Server:
        """The one that runs."""
        assert self._server is not None
        return self._server

    def start(self, *options: str, environment: Mapping[str, str] | None = None) -> None:
        """Start the server with more options and variables; returns when its sockets are open."""
        self._is_usual = not options and environment is None
        wrapper: list[str] = []
        if self.way is not ContentWay.LINKED:
            line = f'{_SEEN[self.way]} && exec "$@"'
            wrapper = ["unshare", "--mount", "sh", "-ec", line, str(self.containerd.folder)]
        self._server = Server(
            self.folder,
            self.store,
            *("--kubelet", self.endpoint, "--publish", self.containerd.endpoint),
            *options,
            config=self.containerd.config,
            environment=environment,
            wrapper=wrapper,
        )
        self._server.hear("READY=1")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the server by a signal."""
        server, self._server = self.server, None
        with contextlib.closing(server):
            server.send(number)
            server.wait()

    def kill(self) -> None:
        """End the server without a chance to tidy up."""
        self.stop(signal.SIGKILL)

    def wait_for_end(self) -> int:
        """Wait until the server has ended by itself; its status."""
        server, self._server = self.server, None
        with contextlib.closing(server):
            return server.wait()

    def imagestore(self, *arguments: str, status: int = 0) -> str:
        """What a command prints, or why it fails; it must end with this status."""
        command = [sys.executable, "-m", "imagestore", "--root", str(self.store)]
        command += ["--config", str(self.containerd.config), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == status, (done.returncode, done.stderr)
        return done.stderr if status else done.stdout

    def log(self, message: str) -> list[dict[str, Any]]:
        """The log's lines with a message, since the test began."""
        lines = [json.loads(line) for line in self._logged().splitlines() if line.startswith("{")]
        return [line for line in lines if line["message"] == message]

    def _logged(self) -> str:
        return self.log_path.read_text()[self._log_begin :] if self.log_path.exists() else ""

    def ways(self, image_id: str) -> Counter[str]:
        """Bytes of an image's layers by the way they came, of all its publishes."""
        found: Counter[str] = Counter()
        for line in self.log("published"):
            if line["image_id"] == image_id:
                found.update(line["bytes"])
        return found

    def remove_app(self) -> None:
        """Remove the application's image under both handlers."""
        for handler in (HOST_HANDLER, GUEST_HANDLER):
            self.kubelet.remove(self.app, handler)

    def known(self) -> set[str]:
        """The ids of images that containerd's CRI knows."""
        return set(self.direct.images())

    def client(self) -> contextlib.AbstractContextManager[Client]:
        """A client of containerd's services."""
        return containerd_client(self.containerd)

    def layers_kept(self) -> set[str]:
        """What containerd has as content that isn't named by one of its records as a manifest, and is no config."""
        manifests = set(self.containerd.images().values())
        configs = {name for name in self.containerd.images() if name.startswith("sha256:")}
        return self.containerd.blobs() - manifests - configs

    def rests(self) -> list[str]:
        """What work that has ended left in containerd, in words."""
        found = [f"lease {each}" for each in sorted(self.containerd.leases()) if each.startswith(_OUR_LEASES)]
        for snapshotter in ("overlayfs", "native"):
            snapshots = self.containerd.snapshots(snapshotter)
            found += [f"snapshot {name}" for name in snapshots if name.startswith("extract-imagestore-")]
        with self.client() as client:
            found += [f"write {ref}" for ref in client.statuses()]
        content = self.containerd.content
        found += [f"file {path.name}" for path in content.glob("imagestore-*")]
        files = {f"sha256:{path.name}" for path in content.glob("blobs/sha256/*")}
        found += [f"blob {each} without a record" for each in sorted(files - self.containerd.blobs())]
        return found

    @contextlib.contextmanager
    def test(self) -> Iterator[None]:
        """Around a test, which begins with the sandbox image alone; afterwards nothing may be left in containerd."""
        self._log_begin = len(self._logged()) + self._log_begin
        try:
            if self._server is None:
                self.start()
            self.kubelet.pull(self.pause)
            yield
            self._clear()
        except BaseException:
            self.close()
            raise
        finally:
            print(self._logged())  # shown if the test failed
        if not self._is_usual:
            self.close()

    def _clear(self) -> None:
        if self._server is None:
            self.start()
        self.kubelet.remove_pods()
        for image_id in self.kubelet.images():
            self.kubelet.remove(image_id)

        def everything() -> list[str]:
            return [*self.containerd.images(), *self.containerd.blobs(), *self.snapshots(), *self.rests()]

        try:
            until(lambda: not everything(), "nothing is left in containerd")
        finally:
            print("left in containerd:", everything())

    def snapshots(self) -> dict[str, str]:
        """The kind of each snapshot of all snapshotters."""
        return {**self.containerd.snapshots("overlayfs"), **self.containerd.snapshots("native")}

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self.stop()


def both_run(node: PodNode, *, policy: str = "IfNotPresent") -> list[Container]:
    """A pod for each handler from one reference: the host's, then the guest's."""
    found = [node.kubelet.run(node.app, handler, policy=policy) for handler in (HOST_HANDLER, GUEST_HANDLER)]
    assert [each.line for each in found] == [HOST, GUEST]
    assert [node.kubelet.state(each) for each in found] == ["CONTAINER_RUNNING"] * 2
    return found


@contextlib.contextmanager
def pod_node(
    registry: DockerRegistry,
    *,
    snapshotter: str = "overlayfs",
    is_isolated: bool = False,
    content: Path | None = None,
) -> Iterator[PodNode]:
    """A node with a containerd of its own; its server isn't started yet. Arguments as for PodNode and its parts."""
    pods = Pods(f"{registry.address}/pause:1", platforms.parse(GUEST), snapshotter, is_isolated)
    with ExitStack() as stack:
        containerd = stack.enter_context(pod_containerd(pods, content=content))
        node = PodNode(stack.enter_context(short_folder()), containerd, registry)
        stack.callback(node.close)
        stack.enter_context(node.kubelet)
        stack.enter_context(node.direct)
        yield node


@contextlib.contextmanager
def containerd_client(containerd: CriContainerd) -> Iterator[Client]:
    """A client of a containerd's services in CRI's namespace."""
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(containerd.endpoint, options=options) as channel:
        yield Client(channel, "k8s.io")


@contextlib.contextmanager
def collecting(containerd: CriContainerd) -> Iterator[Counter[str]]:
    """Let containerd collect its garbage all the time; gives the number of collections, under ``done``."""
    count: Counter[str] = Counter()
    is_over = threading.Event()

    def collect(client: Client) -> None:
        while not is_over.is_set():
            client.delete_lease(client.create_lease(f"collection-{count['done']}"))
            count["done"] += 1

    with containerd_client(containerd) as client:
        thread = threading.Thread(target=collect, args=[client])
        thread.start()
        try:
            yield count
        finally:
            is_over.set()
            thread.join()
    assert count["done"]


@contextlib.contextmanager
def halted(registry: DockerRegistry) -> Iterator[None]:
    """A registry that answers nothing."""
    os.kill(registry.process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(registry.process, signal.SIGCONT)
