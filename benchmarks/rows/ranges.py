"""One large layer from a registry that gives 50 MB/s a connection and is 20 ms away: one stream, or parallel ranges."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost
from benchmarks.suite.figures import Figure, Findings
from benchmarks.suite.images import TITLES
from benchmarks.suite.series import alternate, seconds, table

#: Of ``parallel_ranges``.
SETTINGS = (1, 4, 6)
BEST = 6
_GOAL = 3.0


@contextlib.contextmanager
def far_away(upstream: str, environment: dict[str, str]) -> Iterator[str]:
    """The address of a proxy that makes an address seem far away."""
    proxy = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.suite.distant", upstream], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert proxy.stdout is not None
        yield proxy.stdout.readline().strip()
    finally:
        proxy.terminate()
        proxy.wait(timeout=10)
        assert proxy.stdout is not None
        proxy.stdout.close()


def measure(bench: Bench) -> Findings:
    """One large layer over a slow, distant connection, with several settings of parallel_ranges."""
    found, place = Findings(), bench.first_place
    near = bench.reference("ONE")
    with far_away(bench.plain.address, bench.environment) as address, place.fresh() as folder:
        reference = near.replace(bench.plain.address, address)
        contestants: dict[str, Callable[[], Cost]] = {}
        for ranges in SETTINGS:
            config = folder / f"ranges-{ranges}.toml"
            table_name = '[plugins."io.imagestore.registry.v1"]'
            config.write_text(f"version = 3\n{table_name}\nparallel_ranges = {ranges}\n")
            options = ("--config", str(config))
            contestants[_title(ranges)] = partial(bench.cold_pull, reference, place, bench.plain, *options)
        title = f"{TITLES['ONE']}, 50 MB/s a connection, 20 ms away, {place.name}"
        series = alternate(title, contestants, rounds=bench.rounds, warm_up=0)
    found.details += table(series)
    alone = series.values(_title(1))
    for ranges in SETTINGS[1:]:
        name = _title(ranges)
        faster = series.median(_title(1)) / series.median(name)
        texts = seconds(series.values(name)), _title(1), seconds(alone)
        goal = _GOAL if ranges == BEST else None
        found.figures.append(
            Figure("RANGES", f"{title}: {name}", "speed, wall", *texts, faster, goal=goal, is_lower_bound=True)
        )
    return found


def _title(ranges: int) -> str:
    return "one connection" if ranges == 1 else f"parallel_ranges = {ranges}"
