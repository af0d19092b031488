"""A pull side by side with skopeo: the same image, from docker-registry on loopback, in alternating rounds.

    python benchmarks/pull_bench.py [--layers 4] [--mebibytes 64] [--rounds 5] [--ranges N]

Both start as fresh processes and write into a fresh folder: ours into a store, skopeo's into an OCI layout without
compressing anew. Prints wall and CPU seconds (the children's, by the kernel's accounts) as medians with their spread,
the ratio of the medians, and a hash of the same bytes for scale. It measures and asserts nothing. Loopback has no delay
and no loss, so this is what a client costs, not what a network gives. Needs docker-registry and skopeo.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from imagestore.testing import build_image, synthetic_layer
from tests.support.peers import docker_registry, need

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Cost:
    """One run: wall and CPU seconds."""

    wall: float
    processor: float


def run(command: Sequence[str], environment: dict[str, str]) -> Cost:
    """Run a program and account for it."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def ours(reference: str, folder: Path, ranges: int) -> Cost:
    """Pull into a store."""
    config = folder / "config.toml"
    config.write_text(f'version = 3\n[plugins."io.imagestore.registry.v1"]\nparallel_ranges = {ranges}\n')
    command = [sys.executable, "-m", "imagestore", "--root", str(folder / "store"), "--config", str(config)]
    return run([*command, "pull", "--progress=none", "--platform=linux/amd64", reference], dict(os.environ))


def skopeo(reference: str, folder: Path) -> Cost:
    """Copy into an OCI layout."""
    command = [need("skopeo"), "copy", "--quiet", "--src-tls-verify=false", "--preserve-digests"]
    return run([*command, f"docker://{reference}", f"oci:{folder / 'layout'}:1"], dict(os.environ))


def in_fresh_folder(work: Callable[[Path], Cost]) -> Cost:
    """Run in a folder that is gone afterwards; removing it isn't counted."""
    folder = Path(tempfile.mkdtemp(prefix="pull-bench-"))
    try:
        return work(folder)
    finally:
        shutil.rmtree(folder)


def show(name: str, costs: Sequence[Cost], mebibytes: int) -> None:
    """One line: medians and spread."""
    walls = [cost.wall for cost in costs]
    processor = statistics.median(cost.processor for cost in costs)
    middle = statistics.median(walls)
    spread = f"{min(walls):.2f} to {max(walls):.2f}"
    print(f"{name:12} {middle:6.2f} s ({spread})  {mebibytes / middle:6.0f} MiB/s  {processor:6.2f} CPU s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--mebibytes", type=int, default=64, help="of each layer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranges", type=int, default=1, help="parallel ranges of one layer")
    options = parser.parse_args()
    layers = [synthetic_layer(f"layer {number}", options.mebibytes << 20) for number in range(options.layers)]
    total = options.layers * options.mebibytes
    with tempfile.TemporaryDirectory() as folder, docker_registry(Path(folder)) as registry:
        reference = registry.push("bench/image", "1", build_image("linux/amd64", layers=layers))
        mine: list[Cost] = []
        theirs: list[Cost] = []
        for _ in range(options.rounds + 1):
            mine.append(in_fresh_folder(lambda place: ours(reference, place, options.ranges)))
            theirs.append(in_fresh_folder(lambda place: skopeo(reference, place)))
    # The first round warms the caches of the registry's files.
    mine, theirs = mine[1:], theirs[1:]
    print(f"{options.layers} layers of {options.mebibytes} MiB, {options.rounds} rounds, {options.ranges} range(s)")
    show("imagestore", mine, total)
    show("skopeo", theirs, total)
    for what in ("wall", "processor"):
        ratio = statistics.median(getattr(cost, what) for cost in mine) / statistics.median(
            getattr(cost, what) for cost in theirs
        )
        print(f"{what} time, ours to skopeo's: {ratio:.2f}")
    started = time.perf_counter()
    piece = bytes(1 << 20)
    digester = hashlib.sha256()
    for _ in range(total):
        digester.update(piece)
    print(f"hashing alone: {time.perf_counter() - started:.2f} s")


if __name__ == "__main__":
    main()
