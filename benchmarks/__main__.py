"""Every row of the table of goals, measured side by side with Debian's programs, as a page and a chart.

    make bench                            all rows, 5 rounds (about half an hour)
    make bench ROWS="S M" ROUNDS=7        some rows
    python -m benchmarks --list           which there are

Nothing is asserted: a row that misses its goal says so in the page. Programs start fresh, in alternating rounds, and
write to a disk and to memory. Peers come from Debian (tests/integration/install-peers).
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import traceback
from pathlib import Path

# The benchmarks, and the servers of the tests, are folders of this tree and not installed.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rows import ROWS
from benchmarks.suite import bench as context
from benchmarks.suite import chart, machine, report
from benchmarks.suite.figures import Findings, lines

_QUICK_ROUNDS = 1
_UNMEASURED = "could not be measured"
#: docker-registry, skopeo and we keep many files open; limits of some shells are low.
_OPEN_FILES = 4096


def main() -> None:
    """Measure what is asked for, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", default=[], metavar="ROW", help="all by default; see --list")
    parser.add_argument("--rounds", type=int, default=5, help="that count, of each series")
    parser.add_argument("--quick", action="store_true", help="one round: to try it, not to judge by it")
    parser.add_argument("--disk", type=Path, default=context.default_disk(), help="a folder on a disk")
    parser.add_argument("--tmpfs", type=Path, default=context.default_memory(), help="a folder in memory")
    parser.add_argument("--output", type=Path, help="folder for RESULTS.md and results.svg; printed only by default")
    parser.add_argument("--list", action="store_true", help="name the rows, and end")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name:10} {(row.__doc__ or '').strip()}" for name, row in ROWS.items()))
        return
    names = [name.upper() for name in options.rows] or list(ROWS)
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        parser.error(f"unknown rows {', '.join(unknown)}; there are {', '.join(ROWS)}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_OPEN_FILES, hard) if hard > 0 else _OPEN_FILES, hard))
    # Servers and folders go away with us, also when we are told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds = _QUICK_ROUNDS if options.quick else max(1, options.rounds)
    watch = machine.Watch()
    findings: dict[str, Findings] = {}
    page = ""
    with context.Bench.on(options.disk, options.tmpfs, rounds) as bench:
        for name in names:
            findings[name] = _measure(name, bench)
            page = report.page(findings, bench, watch.sentence())
            if options.output is not None:
                # After each row: a run that is cut short leaves what it found.
                options.output.mkdir(parents=True, exist_ok=True)
                (options.output / "RESULTS.md").write_text(page)
                figures = [figure for found in findings.values() for figure in found.figures]
                (options.output / "results.svg").write_text(chart.draw(figures))
    if options.output is None:
        print(page)
    lost = [name for name, found in findings.items() if any(_UNMEASURED in note for note in found.notes)]
    if lost:
        sys.exit(f"{', '.join(lost)} {_UNMEASURED}; the page lacks them")


def _measure(name: str, bench: context.Bench) -> Findings:
    watch = machine.Watch()
    print(f"{name} ...", file=sys.stderr, flush=True)
    try:
        found = ROWS[name](bench)
    except Exception as error:  # noqa: BLE001 - a row that can't be measured must not cost the others
        traceback.print_exc()
        # Why, with its paths and addresses, is for this machine and not for the page.
        found = Findings(notes=[f"{name}: {_UNMEASURED} ({type(error).__name__})"])
    found.details.append(f"The row took {watch.sentence()}.\n")
    print("\n".join([*lines(found.figures), found.details[-1]]), file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
