"""Several ways of doing the same, in rounds, and what is said about them: medians, spread, ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.suite.cost import Cost

Measure = Literal["wall", "processor", "peak"]


@dataclass(frozen=True, slots=True)
class Series:
    """Every run of every contestant.

    Attributes:
        title: what they did.
        costs: runs in order, by contestant.
    """

    title: str
    costs: dict[str, list[Cost]] = field(default_factory=dict)

    def values(self, name: str, measure: Measure = "wall") -> list[float]:
        """One contestant's numbers."""
        found = [getattr(cost, measure) for cost in self.costs[name]]
        return [value for value in found if value is not None]

    def median(self, name: str, measure: Measure = "wall") -> float:
        """The middle one."""
        return statistics.median(self.values(name, measure))

    def ratio(self, ours: str, theirs: str, measure: Measure = "wall") -> float:
        """Ratio of the medians."""
        return self.median(ours, measure) / self.median(theirs, measure)


def alternate(title: str, contestants: Mapping[str, Callable[[], Cost]], *, rounds: int, warm_up: int = 1) -> Series:
    """Let everybody run once in each round, in the orders of ``turns``.

    Args:
        title: what they do.
        contestants: a run of each, by name.
        rounds: how many count; 2 or more are filled up until everybody has had every turn equally often.
        warm_up: rounds in front that don't count: byte code, page cache, connections.
    """
    series = Series(title, {name: [] for name in contestants})
    names = list(contestants)
    orders = turns(len(names))
    if rounds > 1:
        rounds += -rounds % len(orders)
    for number in range(-warm_up, rounds):
        for position in orders[number % len(orders)]:
            cost = contestants[names[position]]()
            if number >= 0:
                series.costs[names[position]].append(cost)
    return series


def turns(count: int) -> list[list[int]]:
    """Orders in which each comes first, second, ... equally often, and equally often after each other one.

    Whoever comes after a long run, or after his own, finds another machine: memory and caches as that one left them.

    Args:
        count: how many there are; an odd number of them needs twice as many orders.

    Returns:
        Williams' design: 0, 1, n-1, 2, n-2, ..., everything moved on by one in each next order; mirrored where that
        alone isn't balanced.
    """
    first = [(step + 1) // 2 if step % 2 else -step // 2 for step in range(count)]
    moved = [[(position + shift) % count for position in first] for shift in range(count)]
    return moved if count % 2 == 0 else [*moved, *(order[::-1] for order in moved)]


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """Median and range of numbers, to three digits: ``1.70 [1.66-1.81]``."""
    middle, low, high = (digits(value * scale) for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} [{low}-{high}]" if len(values) > 1 else middle


def digits(value: float) -> str:
    """Three digits that count: ``0.0123``, ``1.23``, ``12.3``, ``12,345``; whole numbers as they are."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    # 1.23 has two behind the point, each power of ten one fewer, or one more.
    return f"{value:.{min(2 - math.floor(math.log10(abs(value))), 6)}f}"


def seconds(values: Sequence[float]) -> str:
    """Times with their unit."""
    if statistics.median(values) >= 1:
        return f"{spread(values)} s"
    return f"{spread(values, 1e3)} ms"


def table(series: Series) -> Iterator[str]:
    """Lines of a Markdown table: wall, CPU and peak memory of each contestant."""
    yield f"**{series.title}**"
    yield ""
    yield "| | wall | CPU | peak memory |"
    yield "|---|---|---|---|"
    for name in series.costs:
        peaks = series.values(name, "peak")
        memory = f"{spread(peaks)} MiB" if peaks else ""
        # What wasn't taken is 0.
        spent = series.values(name, "processor")
        yield f"| {name} | {seconds(series.values(name))} | {seconds(spent) if any(spent) else ''} | {memory} |"
    yield ""
