"""A node for tests: a Windows Server 2022 host with the handlers of the KEP, and a registry in memory."""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore import ImageStore, config, platforms
from imagestore.registry import connect
from imagestore.testing import Registry, build_index, layer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from imagestore import Digest
    from imagestore.events import Event
    from imagestore.platforms import Platform
    from imagestore.store.pull.verify import ImageVerifier
    from imagestore.testing import BasicAuth, FaultRule, Image, TokenAuth

HOST = platforms.parse("windows(10.0.20348)/amd64")
PROCESS = "runhcs-wcow-process"
HYPERV = "runhcs-wcow-hypervisor"
CONFIG = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runhcs-wcow-process"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runhcs-wcow-process]
runtime_type = "io.containerd.runhcs.v1"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runhcs-wcow-hypervisor]
runtime_type = "io.containerd.runhcs.v1"
options = { SandboxIsolation = 1 }
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runhcs-wcow-hypervisor.guest_platform]
OS = "windows"
Architecture = "amd64"
OSVersion = "10.0.17763"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata]
runtime_type = "io.containerd.kata.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata.guest_platform]
OS = "linux"
Architecture = "amd64"
"""
PYTHON = "registry.example/library/python:3"
PLATFORMS = ("linux/amd64", "linux/arm64", "windows(10.0.20348.1970)/amd64", "windows(10.0.17763.4851)/amd64")
#: Which of them each handler gets.
HANDLERS = {PROCESS: 2, HYPERV: 3, "kata": 0}


@functools.cache
def python_image() -> Image:
    """An index shaped like python's: Linux and two Windows builds that share one layer."""
    return build_index(PLATFORMS, seed="python", shared=[layer("shared by all")])


def needed(images: Mapping[tuple[str, str], Image]) -> set[Digest]:
    """What records need; by reference and handler, what they were pulled from."""
    found: set[Digest] = set()
    for (_, handler), image in images.items():
        manifest = image.manifests[HANDLERS[handler]]
        found |= {image.target.digest, manifest.descriptor.digest, manifest.config.digest}
        found |= {part.digest for part in manifest.layers}
    return found


@dataclass
class Node:
    """A store, the registry it asks, and the events it heard."""

    store: ImageStore
    registry: Registry
    events: list[Event]

    def requests(self, kind: str) -> int:
        """How many requests of a kind the registry has seen."""
        return self.registry.ledger.count(kind=kind)


@contextmanager
def node(
    root: Path,
    images: Mapping[str, Image] | None = None,
    *,
    faults: Sequence[FaultRule] = (),
    host: Platform = HOST,
    text: str = CONFIG,
    verifier: ImageVerifier | None = None,
    auth: BasicAuth | TokenAuth | None = None,
    sources: Sequence[Path] = (),
) -> Iterator[Node]:
    """Open a node on ``root``; the registry has python unless told otherwise."""
    registry = Registry(images if images is not None else {PYTHON: python_image()}, faults=faults, auth=auth)
    with ExitStack() as stack:
        client = stack.enter_context(connect(transport=registry.transport))
        settings = config.loads(text, filename="config.toml", host=host)
        opened = ImageStore(root, config=settings, host=host, registry=client, verifier=verifier, sources=sources)
        store = stack.enter_context(opened)
        yield Node(store, registry, [])


def snapshot(root: Path) -> dict[str, int]:
    """Every file of the content store with its size."""
    content = root / "content"
    return {str(path.relative_to(content)): path.stat().st_size for path in content.rglob("*") if path.is_file()}
