"""How long one batch of the sweep holds those who want to write (docs/decisions/0015)."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from imagestore.store import garbage
from imagestore.store.garbage import Patience

if TYPE_CHECKING:
    from imagestore.metadata.api import MetadataStore


@dataclass
class Waiting:
    """Others who may wait, and a clock in milliseconds."""

    since: float = float("inf")
    now: float = 0.0
    looks: int = 0

    def is_awaited(self) -> bool:
        self.looks += 1
        return self.now >= self.since

    def batch(self, patience: Patience) -> float:
        """How long a batch lasts that asks ten times a millisecond whether to end."""
        begun = self.now
        patience.begin()
        while not patience.is_over():
            self.now += 0.1
        return round(self.now - begun, 1)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    others = Waiting()
    # The clock is read in steps of a tenth of a millisecond, and a rounded sum must not miss one.
    monkeypatch.setattr(garbage, "time", SimpleNamespace(monotonic=lambda: round(others.now, 1) / 1000 + 1e-9))
    return others


@pytest.fixture
def patience(others: Waiting) -> Patience:
    return Patience(cast("MetadataStore", others))


def test_while_nobody_waits_batches_grow_to_twenty_milliseconds(others: Waiting, patience: Patience) -> None:
    assert [others.batch(patience) for _ in range(5)] == pytest.approx([4, 8, 16, 20, 20], abs=0.2)


def test_who_waits_from_the_start_waits_four_milliseconds(others: Waiting, patience: Patience) -> None:
    for _ in range(4):
        others.batch(patience)
    others.since = others.now
    assert [others.batch(patience) for _ in range(2)] == pytest.approx([4, 4], abs=0.2)


def test_who_comes_in_the_middle_of_a_long_batch_waits_a_millisecond(others: Waiting, patience: Patience) -> None:
    for _ in range(4):
        others.batch(patience)
    others.since = others.now + 10
    assert 10 <= others.batch(patience) <= 11.2


def test_after_somebody_waited_batches_are_short_and_grow_again(others: Waiting, patience: Patience) -> None:
    for _ in range(4):
        others.batch(patience)
    others.since = others.now
    others.batch(patience)
    others.since = float("inf")
    assert [others.batch(patience) for _ in range(3)] == pytest.approx([4, 8, 16], abs=0.2)


def test_looking_for_others_is_no_work_of_its_own(others: Waiting, patience: Patience) -> None:
    for _ in range(4):
        others.batch(patience)
    others.looks = 0
    others.batch(patience)
    assert 10 <= others.looks <= 17
