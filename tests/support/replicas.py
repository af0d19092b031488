"""Replicas of a mirror as processes of their own, and the nodes' side of them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.support.mirror import mirror_table
from tests.support.server import Server, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.shared_place import SharedPlace


@dataclass(frozen=True)
class Replicas:
    """Mirrors as processes of their own; ``urls`` of them."""

    servers: list[Server]
    urls: list[str]

    def metric(self, name: str) -> int:
        """The sum of a counter over all that live."""
        total = 0.0
        for server in self.servers:
            port = server.log("numbers published")[0]["port"]
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=120).text
            total += sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))
        return int(total)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def replicas(
    folder: Path, upstreams: dict[str, str], *, count: int = 2, shared: SharedPlace | None = None, **settings: str
) -> Iterator[Replicas]:
    """Start them, each with a store of its own, or as machines of a shared one."""
    ports = free_ports(count)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    servers = []
    with contextlib.ExitStack() as stack:
        for port, url in zip(ports, urls, strict=True):
            path = folder / f"mirror-{port}.toml"
            path.write_text(mirror_table(upstreams, replicas=str(urls), replica=f'"{url}"', **settings))
            options = ("--mirror", f"127.0.0.1:{port}", "--metrics-listen", "127.0.0.1:0")
            root: Path | str = folder / f"root-{port}"
            environment = {}
            if shared is not None:
                root = shared.url
                environment = {
                    "IMAGESTORE_CONTENT": shared.content,
                    "IMAGESTORE_SCOPE": "mirror",
                    "XDG_CACHE_HOME": str(folder / f"machine-{port}"),
                }
            servers.append(stack.enter_context(serving(root, *options, config=path, environment=environment)))
        yield Replicas(servers, urls)


def certs_d(folder: Path, host: str, urls: list[str], server: str) -> Path:
    """What a node has, by the documented command."""
    place = folder / "certs.d" / host
    place.mkdir(parents=True, exist_ok=True)
    table = mirror_table({host: ""})
    (folder / "node.toml").write_text(table)
    mirrors = [argument for url in urls for argument in ("--mirror", url)]
    given = ("--config", str(folder / "node.toml"), "mirror", "hosts-toml", *mirrors)
    command = [sys.executable, "-m", "imagestore", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    text = done.stdout.partition("\n")[2]
    # The registry itself is at an address of this test's.
    lines = [f'server = "{server}"' if line.startswith("server") else line for line in text.splitlines()]
    (place / "hosts.toml").write_text("\n".join(lines))
    return folder / "certs.d"


def made(folder: Path) -> Path:
    """A new folder."""
    folder.mkdir()
    return folder
