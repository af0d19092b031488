"""Starts a program and prints what it cost, as JSON: ``python -I -S launcher.py PROGRAM ARGUMENT...``

A program of its own, and a small one, because the kernel hands the peak memory of whoever starts a process on to it
(getrusage(2), ru_maxrss): a program started by a large process would seem as large. What it costs covers everything it
waited for; its standard output is thrown away.
"""

import json
import os
import sys
import time


def main() -> None:
    """Run and report: wall and CPU seconds, peak memory in MiB, exit status."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    started = time.perf_counter()
    child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
    _, status, usage = os.wait4(child, 0)
    wall = time.perf_counter() - started
    answer = [wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)]
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
