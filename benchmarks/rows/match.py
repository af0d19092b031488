"""Matching 20 handlers against an index of 1,000 entries, beside parsing that index as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.match_bench import Case, handlers
from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost
from benchmarks.suite.figures import Findings, compare
from benchmarks.suite.series import alternate, table

ENTRIES = 1_000
_GOAL = 15.0
_LEAST_ROUNDS = 15


def measure(bench: Bench) -> Findings:
    """Reading an index of 1,000 entries and choosing for 20 handlers, beside parsing it as JSON."""
    case = Case(ENTRIES, handlers())

    def everything() -> None:
        case.read()
        case.selections = case.match()

    ours: dict[str, Callable[[], object]] = {
        "choosing alone": case.match,
        "reading and choosing": everything,
    }
    contestants = {name: _timed(work) for name, work in {**ours, "json.loads": case.parse}.items()}
    title = f"match, {ENTRIES:,} entries, {len(case.handlers)} handlers"
    series = alternate(title, contestants, rounds=max(3 * bench.rounds, _LEAST_ROUNDS))
    figures = [compare("MATCH", series, name, "json.loads", goal=_GOAL, is_drawn=True) for name in ours]
    return Findings(figures, list(table(series)))


def _timed(work: Callable[[], object]) -> Callable[[], Cost]:
    def run() -> Cost:
        wall, processor = time.perf_counter(), time.process_time()
        work()
        return Cost(time.perf_counter() - wall, time.process_time() - processor)

    return run
