"""A limited rate: even, never saved up, over all transfers of an operation."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from imagestore import CancelToken, TransferPolicy
from imagestore.registry.operation import Operation
from imagestore.registry.retry import Timing


@dataclass
class Clock:
    """A clock that sleeping moves on."""

    seconds: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def sleep(self, _: CancelToken, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.seconds += seconds


def limited(rate: int | None, clock: Clock) -> Operation:
    return Operation(TransferPolicy(bytes_per_second=rate), Timing(monotonic=clock.now, sleep=clock.sleep))


@pytest.mark.parametrize(
    ("rate", "wanted", "share"),
    [
        (None, 1 << 20, 1 << 20),
        (1_000_000, 1 << 20, 100_000),
        (1_000_000, 10, 10),
        # A few packets at least, or each read would be a system call for nothing.
        (1000, 1 << 20, 4096),
        (1000, 10, 10),
    ],
)
def test_a_limited_transfer_reads_a_tenth_of_a_second_at_a_time(rate: int | None, wanted: int, share: int) -> None:
    assert limited(rate, Clock()).share(wanted) == share


def test_transfers_of_one_operation_share_its_rate() -> None:
    clock = Clock()
    operation = limited(1000, clock)
    for _ in range(3):
        operation.throttle(500, cancel=CancelToken())
    assert clock.slept == [0.5, 0.5, 0.5]


def test_time_that_was_not_used_is_not_saved_up() -> None:
    clock = Clock()
    operation = limited(1000, clock)
    operation.throttle(500, cancel=CancelToken())
    clock.seconds += 3600
    operation.throttle(500, cancel=CancelToken())
    assert clock.slept == [0.5, 0.5]


def test_without_a_limit_there_is_no_sleep() -> None:
    clock = Clock()
    limited(None, clock).throttle(1 << 30, cancel=CancelToken())
    assert clock.slept == []
