"""What one run costs, and how it is taken: by a tiny launcher, and from /proc where a daemon works for the program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LAUNCHER = Path(__file__).with_name("launcher.py")
#: Variables that would slow every start (no byte code kept) or let the machine's settings in.
UNWANTED = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONUNBUFFERED")
_PREFIXES = ("IMAGESTORE_", "XDG_", "SSL_CERT_")
_TREE = Path(__file__).parents[2]
#: Whatever takes longer hangs.
LAUNCH_SECONDS = 1800


class RunError(Exception):
    """A program that is measured failed; its message has the last lines of what it said."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One run.

    Attributes:
        wall: seconds from start to end.
        processor: CPU seconds, user and system, of the program, what it started, and the daemon that worked for it.
        peak: most memory at one time in MiB (resident), of the program alone; None where that isn't known.
    """

    wall: float
    processor: float
    peak: float | None = None

    def with_daemon(self, seconds: float) -> Cost:
        """The same run with CPU seconds that a daemon spent on it."""
        return Cost(self.wall, self.processor + seconds, self.peak)


def clean_environment(home: Path) -> dict[str, str]:
    """Variables for every program that is measured: a home without settings, this tree first on Python's path."""
    kept = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    kept = {name: value for name, value in kept.items() if not name.startswith(_PREFIXES)}
    kept |= {"HOME": str(home), "DOCKER_CONFIG": str(home), "NO_PROXY": "*", "no_proxy": "*"}
    # An installed command whose package is this very tree needs no help; a worktree beside it does.
    return kept | {"PYTHONPATH": str(_TREE)}


def run(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Run a program as a fresh process and account for it.

    Raises:
        RunError: it failed.
    """
    launch = [sys.executable, "-I", "-S", str(LAUNCHER), *command]
    done = subprocess.run(launch, env=environment, capture_output=True, text=True, check=False, timeout=LAUNCH_SECONDS)
    if done.returncode:
        raise RunError(f"{' '.join(command)}: could not be started\n{done.stderr[-2000:]}")
    wall, processor, peak, status = json.loads(done.stdout)
    if status:
        raise RunError(f"{' '.join(command)}: status {status}\n{done.stderr[-2000:]}")
    return Cost(wall, processor, peak)


def processor_seconds(process: int) -> float:
    """CPU seconds that a process and the children it waited for have spent so far (proc(5), stat)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    # Numbers 14 to 17 of the manual: utime, stime, cutime, cstime; the second field ended with the bracket.
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def peak_mebibytes(process: int) -> float:
    """Most memory that a process had at one time so far, resident, in MiB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def imagestore_command() -> list[str]:
    """How a user starts it: the installed command beside this interpreter, else as a module."""
    installed = Path(sys.executable).with_name("imagestore")
    if installed.exists() and shutil.which(installed):
        return [str(installed)]
    return [sys.executable, "-m", "imagestore"]
