"""The page with the results."""

from __future__ import annotations

import time
from collections.abc import Mapping

from benchmarks.suite import machine
from benchmarks.suite.bench import Bench
from benchmarks.suite.figures import Findings, lines

_HOW = """\
Each program starts fresh, through a small launcher that takes its wall time, its CPU time (user and system, with that
of the daemon that worked for it) and its peak memory. The rounds of a series differ in their order: each contestant has
every turn equally often, and comes equally often after every other one, for what ran before leaves its traces in memory
and caches. Every cell is the median of the rounds with the smallest and the largest, every ratio a ratio of medians of
the same rounds. Server, client and daemons share the machine. Everything is verified and durable in every figure.
Images are made from a seed, the same bytes everywhere.

"least" is what the ratio would be for the bytes alone: received by Python's own HTTP client (with its TLS) and thrown
away, hashed, and written, without anything around it, and with the registry's part spread over all processors; for
removals, the names deleted. Who verifies and keeps what he pulls is hardly below it on this machine, but for the noise;
receiving over TLS can be done with a sixth less. So a goal well below it can't be met here.
"""


def page(findings: Mapping[str, Findings], bench: Bench, watched: str) -> str:
    """Everything as Markdown.

    Args:
        findings: by row.
        bench: where and how often.
        watched: who else was at work.
    """
    notes = [*bench.notes, *(note for found in findings.values() for note in found.notes)]
    places = ", ".join(f"{place.name} ({place.kind})" for place in bench.places)
    figures = [figure for found in findings.values() for figure in found.figures]
    judged = [figure for figure in figures if figure.goal is not None]
    met = sum(1 for figure in judged if figure.is_met)
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    text = [
        "# Benchmarks",
        "",
        f"Written by `make bench` on {when} UTC. {met} of {len(judged)} goals are met.",
        "",
        _HOW,
        *machine.describe(),
        f"- places: {places}",
        f"- rounds: at least {bench.rounds}; of short runs two or three times as many; of importing 10,000 images one",
        f"- the run: {watched}",
        *(f"- note: {note}" for note in notes),
        "",
        "![Ratios of medians](results.svg)",
        "",
        "## Goals",
        "",
        *lines(figures),
        "",
        "## Every series",
        "",
    ]
    for name, found in findings.items():
        if found.details:
            text += [f"### {name}", "", *found.details]
    return "\n".join(text).rstrip() + "\n"
