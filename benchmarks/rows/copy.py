"""2 GiB from one registry into another, compared with ``skopeo copy``."""

from __future__ import annotations

import shutil

from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost
from benchmarks.suite.figures import Findings, compare, peak
from benchmarks.suite.places import Place
from benchmarks.suite.series import alternate, table
from tests.support.peers import docker_registry, need

OURS, THEIRS = "imagestore copy", "skopeo copy"
_GOAL = 0.7
_PEAK_MEBIBYTES = 96


def measure(bench: Bench) -> Findings:
    """Three layers, 2 GiB, between two registries, compared with skopeo."""
    found = Findings()
    source = bench.reference("L")
    for place in bench.places:

        def ours(place: Place = place) -> Cost:
            return _into_empty(bench, place, source, is_ours=True)

        def theirs(place: Place = place) -> Cost:
            return _into_empty(bench, place, source, is_ours=False)

        series = alternate(f"COPY, 2 GiB, {place.name}", {OURS: ours, THEIRS: theirs}, rounds=bench.rounds)
        found.details += table(series)
        found.figures.append(compare("COPY", series, OURS, THEIRS, goal=_GOAL, is_drawn=True))
        found.figures.append(peak("COPY", series, OURS, goal=_PEAK_MEBIBYTES))
    return found


def _into_empty(bench: Bench, place: Place, source: str, *, is_ours: bool) -> Cost:
    """Copy into a registry that has nothing yet."""
    with place.fresh() as folder, docker_registry(folder) as target:
        destination = f"{target.address}/bench/l:1"
        if is_ours:
            cost = bench.imagestore(folder / "store", "copy", source, destination, "--progress", "none")
        else:
            trust = ("--src-tls-verify=false", "--dest-tls-verify=false")
            places = (f"docker://{source}", f"docker://{destination}")
            cost = bench.run(need("skopeo"), "copy", "--quiet", *trust, *places)
        shutil.rmtree(target.data)
    return cost
