"""A process with the library loaded and a store open, as a runtime has it: pulls what it is told, and says the cost.

    python -m benchmarks.suite.warm_worker ROOT

A line on standard input is a reference; a line on standard output answers with wall and CPU seconds and the peak memory
of the whole process in MiB. Only the pull is timed; the image is deleted with its bytes afterwards.
"""

from __future__ import annotations

import json
import os
import sys
import time

import imagestore
from benchmarks.suite.cost import peak_mebibytes


def main() -> None:
    """Serve until the input ends."""
    with imagestore.open(sys.argv[1]) as store:
        for line in sys.stdin:
            reference = line.strip()
            before, started = sum(os.times()[:2]), time.perf_counter()
            store.pull(reference, platform="linux/amd64")
            wall, processor = time.perf_counter() - started, sum(os.times()[:2]) - before
            peak = peak_mebibytes(os.getpid())
            store.remove(reference, collect=True)
            print(json.dumps([wall, processor, peak]), flush=True)


if __name__ == "__main__":
    main()
