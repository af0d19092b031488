"""One judged number: what was measured, against what, the goal, and whether it is met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.suite.series import Measure, Series, digits, seconds, spread

_NAMES: dict[Measure, str] = {"wall": "wall", "processor": "CPU", "peak": "peak memory"}


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the result.

    Attributes:
        row: name of the row it belongs to.
        work: what was done, and where.
        measure: wall, CPU, peak memory, requests, ...
        ours: our number with its spread, as text.
        against: who or what it is compared with.
        theirs: that one's number, as text.
        value: what the goal is about: a ratio, or a number of its own.
        unit: of the value; ``x`` for a ratio.
        goal: the value may be at most this; None where nothing was asked for.
        least: the value that the work's bytes (or names) alone would have; None where that isn't measured.
        is_lower_bound: the goal is a lower bound instead.
        is_drawn: shown in the chart.
    """

    row: str
    work: str
    measure: str
    ours: str
    against: str
    theirs: str
    value: float
    unit: str = "x"
    goal: float | None = None
    is_lower_bound: bool = False
    is_drawn: bool = False
    least: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.is_lower_bound else self.value <= self.goal


@dataclass(slots=True)
class Findings:
    """What a row found.

    Attributes:
        figures: judged numbers.
        details: Markdown lines with every series.
        notes: what a reader has to know; a peer that is missing, for example.
    """

    figures: list[Figure] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare(
    row: str,
    series: Series,
    ours: str,
    theirs: str,
    *,
    goal: float | None,
    measure: Measure = "wall",
    is_drawn: bool = False,
    least: str = "",
) -> Figure:
    """A ratio of medians of two contestants; and of a third, that does the least, to the second."""
    show = (lambda values: f"{spread(values)} MiB") if measure == "peak" else seconds
    return Figure(
        row,
        f"{series.title}: {ours}",
        _NAMES[measure],
        show(series.values(ours, measure)),
        theirs,
        show(series.values(theirs, measure)),
        series.ratio(ours, theirs, measure),
        goal=goal,
        is_drawn=is_drawn,
        least=series.ratio(least, theirs, measure) if least in series.costs else None,
    )


def peak(row: str, series: Series, name: str, *, goal: float) -> Figure:
    """Peak memory of one contestant; its largest run counts."""
    values = series.values(name, "peak")
    text = f"{spread(values)} MiB"
    return Figure(row, f"{series.title}: {name}", "peak memory", text, "", "", max(values), "MiB", goal)


def over(row: str, series: Series, name: str, base: str, *, goal: float | None) -> Figure:
    """Milliseconds by which one contestant's median is above another's."""
    value = (series.median(name) - series.median(base)) * 1e3
    texts = seconds(series.values(name)), seconds(series.values(base))
    return Figure(row, f"{series.title}: {name}", "wall, over it", texts[0], base, texts[1], value, "ms", goal)


def count(row: str, work: str, measure: str, value: float, *, goal: float | None, unit: str = "") -> Figure:
    """A number that doesn't depend on the machine."""
    return Figure(row, work, measure, digits(value), "", "", value, unit, goal)


def lines(figures: Sequence[Figure]) -> Iterator[str]:
    """The table of a Markdown page."""
    yield "| row | work | measure | imagestore | against | takes | result | goal | met | least |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for each in figures:
        sign = "≥" if each.is_lower_bound else "≤"
        goal = "" if each.goal is None else f"{sign} {digits(each.goal)} {each.unit}".rstrip()
        met = {True: "yes", False: "**no**", None: ""}[each.is_met]
        least = "" if each.least is None else f"{digits(each.least)} {each.unit}"
        yield (
            f"| {each.row} | {each.work} | {each.measure} | {each.ours} | {each.against} | {each.theirs} "
            f"| {digits(each.value)} {each.unit}".rstrip()
            + f" | {goal} | {met} | {least} |"
        )
