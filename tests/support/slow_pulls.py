"""A registry with a large image that may come slowly, and pulls of it under way in a server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from imagestore import CancelToken, platforms
from imagestore.cri import ImageSpec
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, build_index, synthetic_layer
from imagestore.testing.faults.bodies import Drip
from tests.support.server import Server

HERE = platforms.host.detect()
SMALL = "registry.example/library/small:1"
LARGE = "registry.example/library/large:1"
MIB = 1024 * 1024
SIZE = 8 * MIB


def registry(*, bytes_per_second: float = 0.0) -> RegistryServer:
    """Has a small image, and a large one that may come slowly."""
    image = build_image(HERE, seed="large", layers=[synthetic_layer("large", SIZE)])
    slow = FaultRule(Drip(bytes_per_second=bytes_per_second), Where(kind="blob", repository="library/large"), times=0)
    return RegistryServer({SMALL: build_index([HERE]), LARGE: image}, faults=[slow] if bytes_per_second else [])


@contextlib.contextmanager
def pulling(server: Server, reference: str, cancel: CancelToken | None = None) -> Iterator[Future[str]]:
    """A pull under way in the server."""
    with server.client() as client, ThreadPoolExecutor(1) as pool:
        yield pool.submit(client.pull, ImageSpec(reference), cancel=cancel)


def received(root: Path) -> int:
    """Bytes of unfinished downloads."""
    return sum(path.stat().st_size for path in root.glob("content/ingest/*/data"))
