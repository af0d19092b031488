"""What starting a process costs: a small pull beside the least program that pulls, and commands that ask no registry.

CPU, since nearly all of it is the interpreter's own work. The floors are a pull by click and httpx in sixty lines, and
an interpreter that imports click. All run in an environment with the wheel and its extra ``cli`` alone: where rich and
pygments are installed, httpx imports them.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from benchmarks import bare_pull, tiny_layout
from benchmarks.suite.bench import Bench, pull_arguments
from benchmarks.suite.cost import Cost
from benchmarks.suite.figures import Findings, compare
from benchmarks.suite.series import alternate, table

RECORDS = 1_000
_CLICK = "import click"
#: As parts of the CPU of ``import click``.
_GOALS = {"imagestore images, 1,000 records": 1.9, "imagestore --help": 1.5, "imagestore rmi": 2.7}
#: As parts of the CPU of the bare pull; 1.6 would need values that cost nothing to define.
_PULL_GOAL = 2.2
_LEAST_ROUNDS = 15


def measure(bench: Bench) -> Findings:
    """A small pull over a bare one; ``images`` and ``rmi`` with 1,000 records and ``--help`` over ``import click``."""
    found, place = Findings(), bench.first_place
    rounds = max(3 * bench.rounds, _LEAST_ROUNDS)
    with place.fresh() as folder:
        _measure_pulls(bench, found, folder, rounds)
        tiny_layout.write_layout(folder / "layout", RECORDS)
        root = folder / "store"
        bench.imagestore(root, "import", str(folder / "layout"), "--platform", "linux/amd64")
        images, help_, rmi = _GOALS
        references = map(tiny_layout.name, itertools.count())
        contestants = {
            images: lambda: _imagestore(bench, root, "images"),
            help_: lambda: _imagestore(bench, root, "--help"),
            rmi: lambda: _imagestore(bench, root, "rmi", next(references)),
            _CLICK: lambda: bench.run(bench.lean_python, "-c", "import click"),
        }
        series = alternate(f"Start-up, {place.name}", contestants, rounds=rounds)
    found.details += table(series)
    found.figures += [
        compare("START", series, name, _CLICK, goal=goal, measure="processor") for name, goal in _GOALS.items()
    ]
    return found


def _measure_pulls(bench: Bench, found: Findings, folder: Path, rounds: int) -> None:
    reference, numbers = bench.reference("S"), itertools.count()

    def bare(place: Path) -> Cost:
        return bench.run(bench.lean_python, bare_pull.__file__, reference, str(place))

    def ours(place: Path) -> Cost:
        return _imagestore(bench, place, *pull_arguments(reference))

    cold = {
        "imagestore pull": lambda: ours(folder / f"{next(numbers)}"),
        "bare pull": lambda: bare(folder / f"{next(numbers)}"),
    }
    again = {
        "imagestore pull": lambda: ours(folder / "ours"),
        "bare pull": lambda: bare(folder / "bare"),
    }
    for title, ways in (("A small pull, cold", cold), ("A small pull, unchanged tag", again)):
        series = alternate(title, ways, rounds=rounds)
        found.details += table(series)
        found.figures.append(
            compare("START", series, "imagestore pull", "bare pull", goal=_PULL_GOAL, measure="processor")
        )


def _imagestore(bench: Bench, root: Path, *arguments: str) -> Cost:
    return bench.run(bench.lean_python, "-m", "imagestore", "--root", str(root), *arguments)
