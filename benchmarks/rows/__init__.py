"""The rows of the table of goals, by name, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.rows import again, match, pulls, ranges, start, store
from benchmarks.suite.bench import Bench
from benchmarks.suite.figures import Findings

Row = Callable[[Bench], Findings]

ROWS: Final[dict[str, Row]] = {
    "S": pulls.small,
    "M": pulls.medium,
    "MANY": pulls.many,
    "L": pulls.large,
    "L-TLS": pulls.large_tls,
    "HANDLER": again.second_handler,
    "UNCHANGED": again.unchanged_tag,
    "RANGES": ranges.measure,
    "START": start.measure,
    "MATCH": match.measure,
    "STORE": store.peers,
    "GROWTH": store.growth,
}
