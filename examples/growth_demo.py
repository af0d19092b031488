"""Beyond one machine on one page: two mirror replicas, five nodes, one registry behind them.

Everything runs on loopback, as processes of the command line; needs no network and no privileges.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

from imagestore.testing import RegistryServer, build_index, synthetic_layer

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = 5
REPLICAS = 2
NAME = "registry.example/team/app:1"
MIB = 1 << 20
SETTINGS = """
version = 3
[plugins."io.imagestore.mirror.v1"]
replicas = {replicas}
replica = "{replica}"
[plugins."io.imagestore.mirror.v1".upstreams."registry.example"]
endpoints = ["{upstream}"]
"""


def main() -> int:
    """Play the demo and check what it shows; returns the exit status."""
    layers = [synthetic_layer(f"layer {number}", 8 * MIB) for number in range(3)]
    image = build_index(["linux/amd64", "linux/arm64"], seed="growth", shared=layers)
    with (
        tempfile.TemporaryDirectory(prefix="imagestore-growth-") as name,
        RegistryServer({NAME: image}) as upstream,
        replicas(folder := Path(name), upstream.url) as urls,
    ):
        print(f"{NODES} nodes pull {NAME} through {REPLICAS} replicas; the registry is asked only by these.")
        cold = pull_on_all_nodes(folder, "cold", urls)
        sent = upstream.ledger.bytes_sent()
        manifest = image.manifests[0]
        pulled = (image.target, manifest.descriptor, manifest.config, *manifest.layers)
        one_node = sum(descriptor.size for descriptor in pulled)
        alone = NODES * one_node
        print(f"cold: {cold:.1f} s; the registry sent {sent / MIB:.1f} MiB, without a mirror {alone / MIB:.1f} MiB:")
        print(f"      {(alone - sent) / MIB:.1f} MiB are saved")
        upstream.server.close()
        warm = pull_on_all_nodes(folder, "warm", urls)
        print(f"warm: {warm:.1f} s, with the registry switched off")
    return 0 if sent <= 1.05 * one_node else 1


@contextlib.contextmanager
def replicas(folder: Path, upstream: str) -> Iterator[list[str]]:
    """Mirrors, each with a store of its own; their URLs."""
    ports = free_ports(REPLICAS)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with contextlib.ExitStack() as stack:
        for port, url in zip(ports, urls, strict=True):
            config = folder / f"mirror-{port}.toml"
            config.write_text(SETTINGS.format(replicas=urls, replica=url, upstream=upstream))
            arguments = ["--config", str(config), "--root", str(folder / f"mirror-{port}")]
            command = [sys.executable, "-m", "imagestore", *arguments, "serve", "--mirror", f"127.0.0.1:{port}"]
            process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            stack.callback(process.terminate)
        for url in urls:
            wait_for(url)
        yield urls


def pull_on_all_nodes(folder: Path, when: str, urls: list[str]) -> float:
    """The same image on every node, at once, into empty stores; how many seconds it took."""

    def pull(number: int) -> None:
        node = folder / f"{when}-{number}"
        node.mkdir()
        config = node / "config.toml"
        config.write_text(
            f'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{node / "certs.d"}"\n'
        )
        # Each node asks another replica first.
        order = urls[number % REPLICAS :] + urls[: number % REPLICAS]
        mirrors = [argument for url in order for argument in ("--mirror", url)]
        settings = str(next(folder.glob("mirror-*.toml")))
        run("--config", settings, "mirror", "hosts-toml", *mirrors, "--directory", str(node / "certs.d"))
        run("--config", str(config), "--root", str(node / "store"), "pull", "--quiet", NAME)

    started = time.monotonic()
    with ThreadPoolExecutor(NODES) as nodes:
        for done in [nodes.submit(pull, number) for number in range(NODES)]:
            done.result()
    return time.monotonic() - started


def run(*arguments: str) -> None:
    """Run the command line."""
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-m", "imagestore", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens at."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def wait_for(url: str) -> None:
    """Until a mirror answers."""
    for _ in range(600):
        with contextlib.suppress(OSError), urlopen(f"{url}/healthz", timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit(f"{url} doesn't answer")


if __name__ == "__main__":
    sys.exit(main())
