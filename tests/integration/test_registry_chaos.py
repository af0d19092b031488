"""The chaos law over many more seeds than the quick tests have time for."""

from __future__ import annotations

import pytest

from tests.property.registry.chaotic import pull_in_chaos

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("start", range(1000, 1300, 25))
def test_whatever_the_server_does(start: int) -> None:
    for seed in range(start, start + 25):
        pull_in_chaos(seed)
