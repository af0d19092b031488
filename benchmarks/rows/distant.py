"""From a registry that is 20 ms away, 50 MB/s a connection: one large layer by parallel ranges, and whole images."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.rows.pulls import COLD, PEAK_MEBIBYTES, SKOPEO
from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost
from benchmarks.suite.figures import Figure, Findings, compare, peak
from benchmarks.suite.images import TITLES
from benchmarks.suite.series import Series, alternate, seconds, table

#: Of ``parallel_ranges``.
SETTINGS = (1, 4, 6)
BEST = 6
_GOAL = 3.0
#: By image, as parts of what skopeo takes.
_FAR_GOALS = {"S": 1.2, "M": 1.0, "MANY": 0.9}
_AWAY = "50 MB/s a connection, 20 ms away"


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


def ranges(bench: Bench) -> Findings:
    """One large layer over a slow, distant connection, with several settings of parallel_ranges."""
    found, place = Findings(), bench.first_place
    near = bench.reference("ONE")
    with far_away(bench.plain.address, bench.environment) as address, place.fresh() as folder:
        reference = near.replace(bench.plain.address, address)
        contestants: dict[str, Callable[[], Cost]] = {}
        for count in SETTINGS:
            config = folder / f"ranges-{count}.toml"
            table_name = '[plugins."io.imagestore.registry.v1"]'
            config.write_text(f"version = 3\n{table_name}\nparallel_ranges = {count}\n")
            options = ("--config", str(config))
            contestants[_title(count)] = partial(bench.cold_pull, reference, place, bench.plain, *options)
        title = f"{TITLES['ONE']}, {_AWAY}, {place.name}"
        series = alternate(title, contestants, rounds=bench.rounds, warm_up=0)
    found.details += table(series)
    alone = series.values(_title(1))
    for count in SETTINGS[1:]:
        name = _title(count)
        faster = series.median(_title(1)) / series.median(name)
        texts = seconds(series.values(name)), _title(1), seconds(alone)
        goal = _GOAL if count == BEST else None
        found.figures.append(
            Figure("RANGES", f"{title}: {name}", "speed, wall", *texts, faster, goal=goal, is_lower_bound=True)
        )
    return found


def _title(count: int) -> str:
    return "one connection" if count == 1 else f"parallel_ranges = {count}"


def images(bench: Bench) -> Findings:
    """Whole images over such connections, with the settings everybody starts with, beside skopeo."""
    found = Findings()
    with far_away(bench.plain.address, bench.environment) as address:
        for name, goal in _FAR_GOALS.items():
            series = _far(bench, name, address)
            found.details += table(series)
            found.figures += [
                compare("FAR", series, COLD, SKOPEO, goal=goal, is_drawn=True),
                peak("FAR", series, COLD, goal=PEAK_MEBIBYTES),
            ]
    return found


def _far(bench: Bench, name: str, address: str) -> Series:
    place = bench.first_place
    reference = bench.reference(name).replace(bench.plain.address, address)
    contestants: dict[str, Callable[[], Cost]] = {
        COLD: partial(bench.cold_pull, reference, place, bench.plain),
        SKOPEO: partial(bench.skopeo, reference, place, bench.plain),
    }
    return alternate(f"{TITLES[name]}, {_AWAY}, {place.name}", contestants, rounds=bench.rounds)
