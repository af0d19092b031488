"""A store of many images: beside containerd on the same layout, and how costs grow with the number of records."""

from __future__ import annotations

from benchmarks.store_bench import by_size
from benchmarks.store_peers import GOALS, Peers
from benchmarks.suite import containerd
from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost
from benchmarks.suite.figures import Figure, Findings, compare, count
from benchmarks.suite.places import Place
from benchmarks.suite.series import Series, digits, spread

IMAGES = 10_000
SIZES = (1_000, 10_000, 100_000)
#: What "flat" allows: the same within the noise of a machine that does other things too.
_FLAT = 1.5
#: Operations whose cost is the image's, not the store's.
_FLAT_OPERATIONS = (
    "commit one image (4 blobs, synced)",
    "find by name",
    "find by id",
    "list a page of 100",
    "delete one image with its bytes",
)
#: What nobody can do without who removes everything.
ALONE = "the names alone"
_WAITS = ("longest wait of a writer meanwhile", "longest wait of a thread meanwhile")
_LONGEST_MILLISECONDS = 50


def peers(bench: Bench) -> Findings:
    """Import, list, remove one and remove all, of 10,000 images."""
    if not containerd.is_possible():
        return Findings(notes=["STORE: left out; containerd and ctr must be installed, and root must ask"])
    found = Findings()
    for place in bench.places:
        _compare(bench, place, found)
    return found


def growth(bench: Bench) -> Findings:
    """The same operations on 1,000 and on 100,000 records."""
    found = Findings()
    for place in bench.places:
        _grow(place, found)
    return found


def _compare(bench: Bench, place: Place, found: Findings) -> None:
    with place.fresh() as folder:
        measured = Peers(folder, IMAGES, bench.environment)
        measured.run(bench.rounds)
    found.details += [f"**A store of {IMAGES:,} images, {place.name}, durable**", ""]
    found.details += ["| seconds | imagestore | containerd |", "|---|---|---|"]
    for name, (ours, _) in measured.seconds.items():
        theirs = measured.seconds[name.removesuffix(", in process")][1]
        found.details.append(f"| {name} | {spread(ours)} | {spread(theirs)} |")
        costs = {"imagestore": [Cost(each, 0) for each in ours], "ctr": [Cost(each, 0) for each in theirs]}
        if name.startswith("remove all"):
            costs[ALONE] = [Cost(each, 0) for each in measured.deleting]
        series = Series(f"{name}, {IMAGES:,} images, {place.name}", costs)
        found.figures.append(
            compare("STORE", series, "imagestore", "ctr", goal=GOALS[name], least=ALONE, is_drawn=True)
        )
    found.details.append("")


def _grow(place: Place, found: Findings) -> None:
    table = by_size(SIZES, str(place.folder))
    found.details += [f"**Growth, in process, {place.name}, milliseconds**", ""]
    found.details.append("| images | " + " | ".join(f"{size:,}" for size in SIZES) + " |")
    found.details.append("|---" * (len(SIZES) + 1) + "|")
    found.details += [f"| {name} | " + " | ".join(map(digits, values)) + " |" for name, values in table.items()]
    found.details.append("")
    for name in _FLAT_OPERATIONS:
        few, *_, most = table[name]
        title = f"{name}, {SIZES[-1]:,} images, {place.name}"
        texts = f"{digits(most)} ms", f"{SIZES[0]:,} images", f"{digits(few)} ms"
        found.figures.append(Figure("GROWTH", title, "wall", *texts, most / few, goal=_FLAT))
    for name in _WAITS:
        title, longest = f"{name}, {place.name}", max(table[name])
        found.figures.append(count("GROWTH", title, "wall", longest, goal=_LONGEST_MILLISECONDS, unit="ms"))
