"""Whatever a registry does: verified content or a typed error in time, secrets at home, nothing wrong in the store."""

from __future__ import annotations

from hypothesis import settings

from tests.property.registry.chaotic import pull_in_chaos


def test_a_pull_ends_with_verified_content_or_a_typed_error() -> None:
    outcomes = {pull_in_chaos(seed) for seed in range(settings().max_examples)}
    assert "pulled" in outcomes
    assert len(outcomes) >= 3
