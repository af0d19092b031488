"""Whole images of several shapes: cold and warm, beside ``skopeo copy`` and ``ctr content fetch``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from benchmarks.suite import warm
from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost
from benchmarks.suite.figures import Figure, Findings, compare, over, peak
from benchmarks.suite.images import TITLES
from benchmarks.suite.places import Place
from benchmarks.suite.series import Series, alternate, table

COLD, LIBRARY, SERVED = "imagestore", "library in process, warm", "imagestore through its server"
SKOPEO, CTR, BARE = "skopeo copy", "ctr content fetch", "bare interpreter"
#: What nobody can do without who verifies and keeps what he pulls.
ALONE = "the bytes alone"
#: By image, as parts of what skopeo takes. A cold start of one small layer is reported only.
_COLD_GOALS = {"S": None, "M": 0.85, "MANY": 1.0, "L": 0.32}
_WARM_GOALS = {"S": None, "M": 0.5, "MANY": 0.7, "L": 0.28}
_TLS_GOAL = 0.48
PEAK_MEBIBYTES = 64
#: Short runs are noisier, and cost little: so many times the rounds.
_MORE_ROUNDS = {"S": 3, "M": 2, "MANY": 2}


def small(bench: Bench) -> Findings:
    """One small layer, cold and warm, beside skopeo."""
    return _measure(bench, "S")


def medium(bench: Bench) -> Findings:
    """Eight layers, 200 MiB, cold and warm, beside skopeo and containerd."""
    return _measure(bench, "M")


def many(bench: Bench) -> Findings:
    """Sixty layers of 1 MiB, beside skopeo and containerd."""
    return _measure(bench, "MANY")


def large(bench: Bench) -> Findings:
    """Three layers, 2 GiB, cold and warm, beside skopeo and containerd."""
    return _measure(bench, "L")


def small_tls(bench: Bench) -> Findings:
    """One small layer over TLS, as most registries are asked, beside skopeo."""
    return _measure_tls(bench, "S", goal=None)


def large_tls(bench: Bench) -> Findings:
    """The same 2 GiB over TLS, beside skopeo."""
    return _measure_tls(bench, "L", goal=_TLS_GOAL)


def mixed_tls(bench: Bench) -> Findings:
    """Layers of many sizes at a time over TLS, which takes the most memory, beside skopeo."""
    return _measure_tls(bench, "MIXED", goal=None)


def _measure_tls(bench: Bench, name: str, *, goal: float | None) -> Findings:
    found, row = Findings(), f"{name}-TLS"
    for place in bench.places:
        series = _over_tls(bench, name, place)
        found.details += table(series)
        found.figures += [
            compare(row, series, COLD, SKOPEO, goal=goal, least=ALONE, is_drawn=goal is not None),
            compare(row, series, COLD, SKOPEO, goal=None, least=ALONE, measure="processor"),
        ]
        if name != "S":
            found.figures.append(peak(row, series, COLD, goal=PEAK_MEBIBYTES))
    return found


def _over_tls(bench: Bench, name: str, place: Place) -> Series:
    reference = bench.reference(name, bench.tls)
    contestants: dict[str, Callable[[], Cost]] = {
        COLD: partial(bench.cold_pull, reference, place, bench.tls),
        SKOPEO: partial(bench.skopeo, reference, place, bench.tls),
    }
    if name != "S":
        contestants[ALONE] = partial(bench.bytes_alone, reference, place, bench.tls)
    bench.cold_pull(bench.reference("S", bench.tls), place, bench.tls)
    rounds = bench.rounds * _MORE_ROUNDS.get(name, 1)
    return alternate(f"{name} over TLS, {place.name}", contestants, rounds=rounds, warm_up=0)


def _measure(bench: Bench, name: str) -> Findings:
    found = Findings()
    for place in bench.places:
        series = _series(bench, name, place)
        found.details += table(series)
        found.figures += _judge(name, series)
    return found


def _series(bench: Bench, name: str, place: Place) -> Series:
    # Minutes are saved by warming up with the small image what has to be warm.
    warmer = bench.reference("S" if name == "L" else name)
    reference = bench.reference(name)
    with ExitStack() as stack:
        ways = _ways(bench, name, place, stack)
        for way in ways.values():
            way(warmer)
        contestants = {title: partial(way, reference) for title, way in ways.items()}
        rounds = bench.rounds * _MORE_ROUNDS.get(name, 1)
        return alternate(f"{TITLES[name]}, {place.name}", contestants, rounds=rounds, warm_up=0)


def _ways(bench: Bench, name: str, place: Place, stack: ExitStack) -> dict[str, Callable[[str], Cost]]:
    plain = bench.plain
    ways: dict[str, Callable[[str], Cost]] = {
        COLD: lambda reference: bench.cold_pull(reference, place, plain),
        SKOPEO: lambda reference: bench.skopeo(reference, place, plain),
    }
    folder = stack.enter_context(place.fresh())
    if name == "S":
        ways[BARE] = lambda _: bench.bare()
    else:
        ways[ALONE] = lambda reference: bench.bytes_alone(reference, place, plain)
    daemon = bench.containerd(place) if name != "S" else None
    if daemon is not None:
        ways[CTR] = lambda reference: bench.fetch(reference, daemon)
    ways[LIBRARY] = stack.enter_context(warm.library(bench, folder / "library"))
    if name != "MANY":
        root = folder / "served"
        endpoint, process = stack.enter_context(warm.server(bench, root))
        ways[SERVED] = lambda reference: warm.pull_through(bench, endpoint, process, root, reference)
    return ways


def _judge(name: str, series: Series) -> list[Figure]:
    figures = [
        compare(name, series, COLD, SKOPEO, goal=_COLD_GOALS[name], least=ALONE, is_drawn=True),
        compare(name, series, COLD, SKOPEO, goal=None, least=ALONE, measure="processor"),
    ]
    if name == "S":
        figures.append(over(name, series, COLD, BARE, goal=None))
    else:
        figures.append(peak(name, series, COLD, goal=PEAK_MEBIBYTES))
    # One of the two has to reach it; the command line through a server pays for its own start and for gRPC's.
    warm_goals = {LIBRARY: _WARM_GOALS[name], SERVED: None}
    figures += [
        compare(name, series, each, SKOPEO, goal=goal, least=ALONE, is_drawn=True)
        for each, goal in warm_goals.items()
        if each in series.costs
    ]
    if CTR in series.costs:
        # containerd runs already; so does the process that our library is in.
        figures += [
            compare(name, series, COLD, CTR, goal=None, least=ALONE, is_drawn=True),
            compare(name, series, LIBRARY, CTR, goal=None, least=ALONE),
        ]
    return figures
