"""Whatever a registry does: verified content or a typed error in time, secrets at home, nothing wrong in the store."""

from __future__ import annotations

import pytest

from tests.property.registry.chaotic import pull_in_chaos

SEEDS = 40


@pytest.mark.parametrize("start", range(0, SEEDS, 8))
def test_whatever_the_server_does(start: int) -> None:
    for seed in range(start, start + 8):
        pull_in_chaos(seed)


def test_the_seeds_reach_success_and_several_kinds_of_failure() -> None:
    outcomes = {pull_in_chaos(seed) for seed in range(SEEDS, SEEDS + 24)}
    assert "pulled" in outcomes
    assert len(outcomes) >= 3
