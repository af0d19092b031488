"""A store and a fake containerd."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.publish.publisher import Publisher
from tests.support.fake_containerd import FakeContainerd
from tests.support.publishing import PublishingNode, publishing_node


@pytest.fixture(autouse=True)
def _logging(caplog: pytest.LogCaptureFixture) -> None:
    """Every message is made."""
    caplog.set_level(logging.DEBUG, "imagestore")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[PublishingNode]:
    """The node."""
    with publishing_node(tmp_path) as opened:
        yield opened


@pytest.fixture
def fake(here: PublishingNode) -> FakeContainerd:
    """Its containerd."""
    return here.fake


@pytest.fixture
def publisher(here: PublishingNode) -> Iterator[Publisher]:
    """Its publisher."""
    with here.publisher() as opened:
        yield opened
