"""What a short command takes over a bare interpreter: ``images`` and ``rmi`` with 1,000 records, and ``--help``."""

from __future__ import annotations

import itertools

from benchmarks import tiny_layout
from benchmarks.suite.bench import Bench
from benchmarks.suite.figures import Findings, over
from benchmarks.suite.series import alternate, table

RECORDS = 1_000
_GOALS = {"imagestore images, 1,000 records": 60.0, "imagestore --help": 60.0, "imagestore rmi": 80.0}
_LEAST_ROUNDS = 15


def measure(bench: Bench) -> Findings:
    """``images`` and ``rmi`` with 1,000 records, and ``--help``, over a bare interpreter."""
    found, place = Findings(), bench.first_place
    with place.fresh() as folder:
        tiny_layout.write_layout(folder / "layout", RECORDS)
        root = folder / "store"
        bench.imagestore(root, "import", str(folder / "layout"), "--platform", "linux/amd64")
        images, help_, rmi = _GOALS
        references = map(tiny_layout.name, itertools.count())
        contestants = {
            images: lambda: bench.imagestore(root, "images"),
            help_: lambda: bench.imagestore(root, "--help"),
            rmi: lambda: bench.imagestore(root, "rmi", next(references)),
            "bare interpreter": bench.bare,
        }
        rounds = max(3 * bench.rounds, _LEAST_ROUNDS)
        series = alternate(f"Start-up, {place.name}", contestants, rounds=rounds)
    found.details += table(series)
    found.figures += [over("START", series, name, "bare interpreter", goal=goal) for name, goal in _GOALS.items()]
    return found
