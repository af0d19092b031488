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
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from imagestore import platforms
from imagestore.protos.cri import api_pb2 as cri
from imagestore.protos.cri.api_pb2_grpc import ImageServiceStub, RuntimeServiceStub
from imagestore.testing import Image, RegistryServer, build_image, build_index, program_layer

#: What one kernel runs: programs of its own architecture, and of the 32-bit one before it.
PLATFORMS = {"amd64": ("linux/amd64", "linux/386"), "arm64": ("linux/arm64", "linux/arm")}
PACKAGES = {"containerd": "containerd", "ctr": "containerd", "runc": "runc"}
APP, PAUSE = "registry.example/team/app:1", "registry.example/pause:1"
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
    architecture = platforms.host.detect().architecture
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if reason := why_not(architecture):
        print(f"demo-node: {reason}", file=sys.stderr)
        return 1
    both = PLATFORMS[architecture]
    images = {APP: index_of(both, both), PAUSE: index_of(both, ("pause", "pause"))}
    with tempfile.TemporaryDirectory(prefix="is-") as name, RegistryServer(images) as registry:
        node = Node(Path(name), registry.url, both[1].split("/")[1])
        try:
            return play(node, registry, both)
        finally:
            node.close()


def why_not(architecture: str) -> str:
    """Why this machine can't play it; empty if it can."""
    if sys.platform != "linux" or architecture not in PLATFORMS:
        return f"needs Linux on amd64 or arm64, whose kernels run two platforms' programs; this is {architecture}"
    missing = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
    if missing:
        return f"needs Debian's containerd and runc: apt-get install {' '.join(missing)}"
    return "" if os.geteuid() == 0 else "needs root, since it starts containers; run it by sudo"


def play(node: Node, registry: RegistryServer, both: tuple[str, str]) -> int:
    """What is shown; the exit status."""
    node.start_containerd()
    node.start_imagestore()
    print("One reference, two runtime classes. The image service is imagestore, the runtime is containerd.")
    node.pull(PAUSE)
    first = [node.run(handler) for handler in ("host", "guest")]
    node.imagestore("images")
    node.imagestore("publish", "--status", APP)
    print("\ncontainerd is killed, its root deleted, and the registry switched off; then the same pods again:")
    node.remove_pods()
    node.stop("containerd", kill=True)
    registry.server.close()
    node.wipe()
    node.start_containerd()
    again = [node.run(handler) for handler in ("host", "guest")]
    right = first == again == list(both)
    print(
        "\nTwo programs ran from one reference, each as its runtime class wants it." if right else "\nThat was wrong."
    )
    return 0 if right else 1


class Node:
    """containerd, imagestore, and the calls of a kubelet to both."""

    def __init__(self, folder: Path, registry: str, guest: str) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.config.write_text(SETTINGS.format(folder=folder, guest=guest))
        hosts = folder / "certs.d" / "registry.example" / "hosts.toml"
        hosts.parent.mkdir(parents=True)
        hosts.write_text(f'[host."{registry}"]\ncapabilities = ["pull", "resolve"]\n')
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        options = [("grpc.default_authority", "localhost"), ("grpc.max_reconnect_backoff_ms", 100)]
        self.images = ImageServiceStub(grpc.insecure_channel(f"unix://{folder}/kubelet.sock", options=options))
        self.runtime = RuntimeServiceStub(grpc.insecure_channel(f"unix://{folder}/containerd.sock", options=options))
        self.pods = 0

    def start_containerd(self) -> None:
        """Debian's, with this demo's configuration."""
        self.start("containerd", "containerd", "--config", str(self.config))
        self.wait("containerd", lambda: self.runtime.Version(cri.VersionRequest(), timeout=5))

    def start_imagestore(self) -> None:
        """The image service, which publishes into containerd."""
        publish, kubelet = f"unix://{self.folder}/containerd.sock", f"unix://{self.folder}/kubelet.sock"
        command = self.command("serve", "--publish", publish, "--kubelet", kubelet)
        print(f"$ imagestore {shlex.join(command[3:])}")
        self.start("imagestore", *command)
        self.wait("imagestore", lambda: self.images.ImageFsInfo(cri.ImageFsInfoRequest(), timeout=5))

    def pull(self, image: str, handler: str = "", pod: cri.PodSandboxConfig | None = None) -> str:
        """Pull for a handler; the image id."""
        spec = cri.ImageSpec(image=image, runtime_handler=handler)
        return self.images.PullImage(cri.PullImageRequest(image=spec, sandbox_config=pod), timeout=60).image_ref

    def run(self, handler: str) -> str:
        """A pod of a runtime class; what its container writes first."""
        self.pods += 1
        logs = self.folder / f"logs-{self.pods}"
        pod = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=handler, namespace="demo", uid=str(self.pods)), log_directory=str(logs)
        )
        # The node's own network: no network plugin is needed.
        pod.linux.security_context.namespace_options.network = cri.NODE
        sandbox = self.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=pod, runtime_handler=handler), timeout=60)
        image = self.present(handler) or self.pull(APP, handler, pod)
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="app"), image=cri.ImageSpec(image=image), log_path="app.log"
        )
        config.linux.security_context.namespace_options.network = cri.NODE
        request = cri.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=config, sandbox_config=pod)
        container = self.runtime.CreateContainer(request, timeout=60).container_id
        self.runtime.StartContainer(cri.StartContainerRequest(container_id=container), timeout=60)
        self.wait("the container's first line", lambda: (logs / "app.log").read_text().index("\n"))
        # Behind time, stream and a flag.
        line = (logs / "app.log").read_text().splitlines()[0].split(" ", 3)[3]
        print(f"pod of runtime class {handler:5}: image {image[:19]}, its container writes: {line}")
        return line

    def present(self, handler: str) -> str:
        """The id of the image that a handler has; empty if it has none."""
        spec = cri.ImageSpec(image=APP, runtime_handler=handler)
        return self.images.ImageStatus(cri.ImageStatusRequest(image=spec), timeout=60).image.id

    def imagestore(self, *arguments: str) -> None:
        """Show what the command line prints."""
        print(f"\n$ imagestore {shlex.join(arguments)}", flush=True)
        subprocess.run(self.command(*arguments), check=True)

    def command(self, *arguments: str) -> list[str]:
        """The command line with this node's store and configuration."""
        return [
            sys.executable,
            "-m",
            "imagestore",
            "--root",
            f"{self.folder}/store",
            "--config",
            str(self.config),
            *arguments,
        ]

    def start(self, name: str, *command: str) -> None:
        """A process in the background; its log is a file."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self, name: str, *, kill: bool = False) -> None:
        """End a process, by SIGKILL if wanted."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        process.wait(60)

    def wait(self, what: str, attempt: Callable[[], object]) -> None:
        """Until an attempt succeeds."""
        for _ in range(600):
            with contextlib.suppress(grpc.RpcError, OSError, ValueError):
                attempt()
                return
            time.sleep(0.05)
        logs = "".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
        raise SystemExit(f"{what}: not within 30 s\n{logs}")

    def remove_pods(self) -> None:
        """End every pod, so that no process and no mount stays."""
        for pod in self.runtime.ListPodSandbox(cri.ListPodSandboxRequest(), timeout=60).items:
            self.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod.id), timeout=60)
            self.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod.id), timeout=60)

    def wipe(self) -> None:
        """Delete all that containerd has; it must be ended, and have no pods."""
        for name in ("root", "state"):
            shutil.rmtree(self.folder / name)

    def close(self) -> None:
        """End everything."""
        if self.processes and "containerd" not in self.processes:
            self.start_containerd()
        if self.processes:
            self.remove_pods()
        for name in list(self.processes):
            self.stop(name)


def index_of(architectures: tuple[str, str], lines: tuple[str, str]) -> Image:
    """An index of images whose program writes a line and waits."""
    return build_index(
        [
            build_image(
                platform,
                layers=[program_layer(platform.split("/")[1], line)],
                config={"config": {"Entrypoint": ["/run"]}},
            )
            for platform, line in zip(architectures, lines, strict=True)
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
