"""Debian's docker-registry, judged as the kit's registry is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from tests.contracts.registry import WritableRegistryContract
from tests.support.peers import docker_registry

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as running:
        yield f"http://{running.address}"


class TestDockerRegistry(WritableRegistryContract):
    """Version 2.8."""

    posts_whole: ClassVar[bool] = False
    checks_order: ClassVar[bool] = False
    pages_tags: ClassVar[bool] = False
    too_large: ClassVar[int] = 400
    has_referrers_api: ClassVar[bool] = False
    deletes_tags: ClassVar[bool] = False
