"""Matching 20 handlers against an index of 1,000 entries, beside parsing that index as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.match_bench import KINDS, Case, handlers
from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost
from benchmarks.suite.figures import Figure, Findings, compare
from benchmarks.suite.series import alternate, table

ENTRIES = 1_000
_GOAL = 15.0
_LEAST_ROUNDS = 15


def measure(bench: Bench) -> Findings:
    """From the bytes of an index of 1,000 entries to the choices for 20 handlers, beside parsing it as JSON."""
    figures: list[Figure] = []
    lines: list[str] = []
    for kind in KINDS:
        case = Case(kind, ENTRIES, handlers())
        contestants: dict[str, Callable[[], object]] = {
            "reading and choosing": case.choose,
            "and telling every reason": case.explain,
            "json.loads": case.loads,
        }
        title = f"match, {ENTRIES:,} entries ({kind}), {len(case.handlers)} handlers"
        timed = {name: _timed(work) for name, work in contestants.items()}
        series = alternate(title, timed, rounds=max(3 * bench.rounds, _LEAST_ROUNDS))
        figures += [
            compare("MATCH", series, "reading and choosing", "json.loads", goal=_GOAL, is_drawn=True),
            compare("MATCH", series, "and telling every reason", "json.loads", goal=None),
        ]
        lines += table(series)
    return Findings(figures, lines)


def _timed(work: Callable[[], object]) -> Callable[[], Cost]:
    def run() -> Cost:
        wall, processor = time.perf_counter(), time.process_time()
        work()
        return Cost(time.perf_counter() - wall, time.process_time() - processor)

    return run
