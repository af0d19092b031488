"""A node on one page: one reference, two runtime handlers, two pods that run different programs.

Debian's containerd and runc run the pods, unpatched; ``imagestore serve`` is the image service, and publishes what it
pulls into containerd. This program makes the kubelet's calls. Everything is on loopback and in a temporary folder. It
needs root, since it starts containers.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc

from imagestore import platforms
from imagestore.cri import CriImageService, ImageSpec
from imagestore.errors import ImageStoreError
from imagestore.protos.cri import api_pb2 as cri
from imagestore.protos.cri.api_pb2_grpc import RuntimeServiceStub
from imagestore.testing import Image, RegistryServer, build_image, build_index, program_layer

#: What one kernel runs: programs of its own architecture, and of the 32-bit one before it.
PLATFORMS = {"amd64": ("linux/amd64", "linux/386"), "arm64": ("linux/arm64", "linux/arm")}
#: The programs that are needed, and Debian's packages that have them.
PACKAGES = {"containerd": "containerd", "runc": "runc"}
APP, PAUSE = "registry.example/team/app:1", "registry.example/pause:1"
HANDLERS = ("host", "guest")
T = TypeVar("T")
#: containerd's own file, which imagestore reads too: containerd ignores guest_platform.
SETTINGS = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[ttrpc]
  address = "{folder}/ttrpc.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example/pause:1"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "{folder}/certs.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "host"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.host]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.guest]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.guest.guest_platform]
  OS = "linux"
  Architecture = "{guest}"
"""


def main() -> int:
    """Play the demo and check what it shows; returns the exit status."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    architecture = platforms.host.detect().architecture
    if reason := why_not(architecture):
        print(f"demo-node: {reason}", file=sys.stderr)
        return 1
    both = PLATFORMS[architecture]
    images = {APP: index_of(both, both), PAUSE: index_of(both, ("pause", "pause"))}
    with tempfile.TemporaryDirectory(prefix="is-") as name, RegistryServer(images) as registry:
        node = Node(Path(name), registry.url, both[1].split("/")[1])
        try:
            right = play(node, registry) == [*both, *both]
        finally:
            node.close()
    print("\nTwo programs ran from one reference, each as its runtime class wants it." if right else "\nThat is wrong.")
    return 0 if right else 1


def why_not(architecture: str) -> str:
    """Why this machine can't play it; empty if it can."""
    if sys.platform != "linux" or architecture not in PLATFORMS:
        return f"needs Linux on amd64 or arm64, whose kernels run two platforms' programs; this is {architecture}"
    missing = sorted(package for program, package in PACKAGES.items() if shutil.which(program) is None)
    if missing:
        return f"needs Debian's containerd and runc: apt-get install {' '.join(missing)}"
    return "" if os.geteuid() == 0 else "needs root, since it starts containers; try: sudo make demo-node"


def play(node: Node, registry: RegistryServer) -> list[str]:
    """What is shown; the first line that each container wrote."""
    print("One reference, two runtime classes. The image service is imagestore, the runtime is containerd.\n")
    node.start_containerd()
    node.start_imagestore()
    node.images.pull(ImageSpec(PAUSE))
    lines = [node.run(handler) for handler in HANDLERS]
    node.imagestore("images")
    node.imagestore("publish", "--status", APP)
    print("\ncontainerd is killed, all that it has is deleted, the registry is switched off. The same pods again:\n")
    node.wipe_containerd()
    registry.server.close()
    node.start_containerd()
    return lines + [node.run(handler) for handler in HANDLERS]


class Node:
    """containerd, imagestore, and a kubelet's calls to both."""

    def __init__(self, folder: Path, registry: str, guest: str) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.config.write_text(SETTINGS.format(folder=folder, guest=guest))
        hosts = folder / "certs.d" / "registry.example" / "hosts.toml"
        hosts.parent.mkdir(parents=True)
        hosts.write_text(f'[host."{registry}"]\ncapabilities = ["pull", "resolve"]\n')
        self.containerd, self.kubelet = f"unix://{folder}/containerd.sock", f"unix://{folder}/kubelet.sock"
        self.images = CriImageService(self.kubelet)
        options = [("grpc.default_authority", "localhost"), ("grpc.max_reconnect_backoff_ms", 100)]
        self.runtime = RuntimeServiceStub(grpc.insecure_channel(self.containerd, options=options))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.pods = 0

    def start_containerd(self) -> None:
        """Debian's, with this demo's configuration."""
        self.start("containerd", "containerd", "--config", str(self.config))
        self.until("containerd answers", lambda: self.runtime.Version(cri.VersionRequest(), timeout=5))

    def start_imagestore(self) -> None:
        """The image service, which publishes into containerd."""
        options = ("serve", "--publish", self.containerd, "--kubelet", self.kubelet)
        print(f"$ imagestore --root {self.folder}/store --config {self.config} {shlex.join(options)}\n", flush=True)
        self.start("imagestore", *self.command(*options))
        self.until("imagestore answers", self.images.version)

    def run(self, handler: str) -> str:
        """A pod of a runtime class, as a kubelet runs it; what its container writes first."""
        self.pods += 1
        logs = self.folder / f"logs-{self.pods}"
        pod = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=handler, namespace="demo", uid=str(self.pods)), log_directory=str(logs)
        )
        # The node's own network: no network plugin is needed.
        pod.linux.security_context.namespace_options.network = cri.NODE
        sandbox = cri.RunPodSandboxRequest(config=pod, runtime_handler=handler)
        # Again until the sandbox image is there, as a kubelet does.
        pod_id = self.until("a sandbox", lambda: self.runtime.RunPodSandbox(sandbox, timeout=60)).pod_sandbox_id
        present = self.images.status(ImageSpec(APP, handler))
        image = present.id if present is not None else self.images.pull(ImageSpec(APP, handler))
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="app"), image=cri.ImageSpec(image=image), log_path="app.log"
        )
        config.linux.security_context.namespace_options.network = cri.NODE
        create = cri.CreateContainerRequest(pod_sandbox_id=pod_id, config=config, sandbox_config=pod)
        container = self.runtime.CreateContainer(create, timeout=60).container_id
        self.runtime.StartContainer(cri.StartContainerRequest(container_id=container), timeout=60)
        # The line is behind time, stream and a flag.
        read = (logs / "app.log").read_text
        line = self.until("the container's first line", lambda: read()[: read().index("\n")]).split(" ", 3)[3]
        print(f"pod of runtime class {handler:5}: image {image[:19]}, its container writes: {line}")
        return line

    def imagestore(self, *arguments: str) -> None:
        """Show what the command line prints."""
        print(f"\n$ imagestore {shlex.join(arguments)}", flush=True)
        subprocess.run(self.command(*arguments), check=True)

    def command(self, *arguments: str) -> list[str]:
        """The command line with this node's store and configuration."""
        options = ("--root", f"{self.folder}/store", "--config", str(self.config))
        return [sys.executable, "-m", "imagestore", *options, *arguments]

    def start(self, name: str, *command: str) -> None:
        """A process in the background; its log is a file."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def until(self, what: str, attempt: Callable[[], T]) -> T:
        """The first success of an attempt."""
        for _ in range(600):
            if any(process.poll() is not None for process in self.processes.values()):
                break
            with contextlib.suppress(grpc.RpcError, ImageStoreError, OSError, ValueError):
                return attempt()
            time.sleep(0.05)
        logs = "".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
        raise SystemExit(f"never came: {what}\n{logs}")

    def wipe_containerd(self) -> None:
        """Kill it, and delete all that it has."""
        self.remove_pods()
        containerd = self.processes.pop("containerd")
        containerd.kill()
        containerd.wait()
        for name in ("root", "state"):
            shutil.rmtree(self.folder / name)

    def remove_pods(self) -> None:
        """End every pod, so that no process and no mount stays."""
        for pod in self.runtime.ListPodSandbox(cri.ListPodSandboxRequest(), timeout=60).items:
            self.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod.id), timeout=60)
            self.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod.id), timeout=60)

    def close(self) -> None:
        """End everything."""
        if "containerd" in self.processes:
            self.remove_pods()
        self.images.close()
        for process in self.processes.values():
            process.terminate()
            process.wait(60)


def index_of(architectures: tuple[str, str], lines: tuple[str, str]) -> Image:
    """An index of images whose program writes a line and waits."""
    entrypoint = {"config": {"Entrypoint": ["/run"]}}
    programs = [program_layer(each.split("/")[1], line) for each, line in zip(architectures, lines, strict=True)]
    return build_index(
        [
            build_image(platform, layers=[program], config=entrypoint)
            for platform, program in zip(architectures, programs, strict=True)
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
