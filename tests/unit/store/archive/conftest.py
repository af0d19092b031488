"""What the tests of archives share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import Node, node


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path / "store") as opened:
        yield opened
