"""A store served on a socket, and a client in namespace ``default``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore import ImageStore, platforms
from tests.support.containerd_client import Client
from tests.support.rpc_server import containerd_face, proxy_face


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    """Closed with its server."""
    return ImageStore(tmp_path / "store", host=platforms.parse("linux/amd64"))


@pytest.fixture
def client(store: ImageStore, tmp_path: Path) -> Iterator[Client]:
    """In namespace default."""
    with containerd_face(store, tmp_path / "s") as channel:
        yield Client(channel)


@pytest.fixture
def home(client: Client) -> Client:
    """In the store's own namespace."""
    return client.within("k8s.io")


@pytest.fixture
def proxied(store: ImageStore, tmp_path: Path) -> Iterator[Client]:
    """What a containerd that keeps its content here calls with: no namespace."""
    with proxy_face(store, tmp_path / "p") as channel:
        yield Client(channel, namespace="")
