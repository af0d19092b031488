"""A process that takes a lock and is suspended with it, as by SIGSTOP or a debugger."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.patience import until

TOP: Final = Path(__file__).parents[2]


@contextlib.contextmanager
def stopped(program: str, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until it prints a line, and suspend it; it is killed at the end.

    Args:
        program: Python, with ``arguments`` in ``sys.argv[1:]``; it prints, with ``flush=True``, once it has its locks.
    """
    # A sleep, since the program must not end before it is suspended.
    command = [sys.executable, "-c", f"{program}\nimport time\ntime.sleep(600)", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=TOP) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            os.kill(process.pid, signal.SIGSTOP)
            until(lambda: _state(process.pid) == "T", "the process is suspended")
            yield process
        finally:
            process.kill()


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
