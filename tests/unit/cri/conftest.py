"""What the tests of CRI's image calls share: a store behind a socket, over a registry with a few images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.cri.client import CriImageService
from imagestore.testing import Image, build_image, build_index
from tests.support.cri_server import CriServer, cri_server
from tests.support.node import Node, node
from tests.unit.cri.image_calls import HOST, WINDOWS


@pytest.fixture(scope="module")
def images() -> dict[str, Image]:
    """An index under three tags and in two repositories, and others."""
    users = {"uid": "1002", "name": "www-data", "uid-group": "1003:users", "name-group": "www-data:100", "nobody": ""}
    users |= {"below-0": "-5", "signed": "+7", "most": str(2**63 - 1), "least": str(-(2**63)), "many": "0" * 30 + "7"}
    users |= {"too-many": str(2**63), "arabic": "\u0663", "blank": " 7", "sign": "-", "underscore": "1_0"}
    shared = build_index([WINDOWS, "linux/amd64"], seed="shared")
    tags = dict.fromkeys((f"{HOST}/team/tags:1", f"{HOST}/team/tags:2", f"{HOST}/other/tags:3"), shared)
    with_users = {
        f"{HOST}/user:{name}": build_image(WINDOWS, seed=name, config={"config": {"User": user}})
        for name, user in users.items()
    }
    return {**tags, **with_users}


@pytest.fixture
def here(tmp_path: Path, images: dict[str, Image]) -> Iterator[Node]:
    with node(tmp_path, images) as running:
        yield running


@pytest.fixture
def server(here: Node) -> Iterator[CriServer]:
    with cri_server(here.store) as running:
        yield running


@pytest.fixture
def client(server: CriServer) -> Iterator[CriImageService]:
    with CriImageService(server.endpoint) as connected:
        yield connected
