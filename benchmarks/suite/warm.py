"""Ways of pulling where Python has started already: the library in a process, our server behind the command line."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost, RunError, imagestore_command, peak_mebibytes, processor_seconds

_START_SECONDS = 30.0


@contextlib.contextmanager
def library(bench: Bench, root: Path) -> Iterator[Callable[[str], Cost]]:
    """A process with an open store; call it with a reference."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.suite.warm_worker", str(root)],
        env=bench.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    asked, answers = worker.stdin, worker.stdout

    def pull(reference: str) -> Cost:
        asked.write(f"{reference}\n")
        asked.flush()
        line = answers.readline()
        if not line:
            raise RunError(f"the warm library: no answer about {reference}; status {worker.wait(10)}")
        return Cost(*json.loads(line))

    try:
        yield pull
    finally:
        worker.stdin.close()
        worker.wait(timeout=60)
        worker.stdout.close()


@contextlib.contextmanager
def server(bench: Bench, root: Path, *options: str) -> Iterator[tuple[str, int]]:
    """A running ``imagestore serve``: its endpoint and process id."""
    sockets = Path(tempfile.mkdtemp(prefix="is-"))
    endpoint = f"unix://{sockets}/run/i.sock"
    # Sockets lie in a folder of their own that nobody else may enter.
    command = [*imagestore_command(), *options, "serve", "--root", str(root), "--listen", endpoint]
    try:
        with open(sockets / "log", "wb") as log:
            process = subprocess.Popen(command, env=bench.environment, stdout=log, stderr=log)
        try:
            _wait_for(bench, endpoint, process, sockets / "log")
            yield endpoint, process.pid
        finally:
            process.terminate()
            process.wait(timeout=60)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def pull_through(bench: Bench, endpoint: str, process: int, root: Path, reference: str) -> Cost:
    """Pull by the command line through a server, whose CPU is counted; the image is removed afterwards."""
    before = processor_seconds(process)
    found = bench.run(*imagestore_command(), "--endpoint", endpoint, "pull", "--progress=none", reference)
    cost = found.with_daemon(processor_seconds(process) - before)
    bench.imagestore(root, "rmi", "--gc", reference)
    return Cost(cost.wall, cost.processor, (cost.peak or 0) + peak_mebibytes(process))


def _wait_for(bench: Bench, endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(RunError):
            bench.run(*imagestore_command(), "--endpoint", endpoint, "version")
            return
        time.sleep(0.1)
    raise RuntimeError(f"imagestore serve did not start\n{log.read_text()[-2000:]}")
