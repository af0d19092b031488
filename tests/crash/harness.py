"""Kills processes at work on one store, at failpoints and at random, and judges what is left after each.

    python -m tests.crash --kills 1000 [--seed 7]

ends with ``N kills, M violations``; the exit status is 1 when there was one. A seed repeats the decisions, though not
the kernel's scheduling.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from imagestore.testing import RegistryServer, build_index, layer, synthetic_layer
from tests.support.node import PLATFORMS

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess

    from imagestore.testing.images.builders import Image

TOP = Path(__file__).parents[2]
REFERENCES = tuple(f"registry.example/crash/{name}:1" for name in ("a", "b", "c", "d"))
ARCHIVE = "images.tar"
WORKERS = 3
LONGEST_SECONDS = 1.5
_PRELOADED = ["httpx", "jsonschema", "imagestore.store", "imagestore.pull.work", "imagestore.registry.connect"]


@dataclass
class Outcome:
    """What a run of the harness saw.

    Attributes:
        kills: processes that died by SIGKILL.
        places: how many of them at each failpoint.
        violations: broken promises, in one line each.
    """

    kills: int = 0
    places: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kills} kills, {len(self.violations)} violations"


@dataclass(frozen=True)
class _Registry:
    server: RegistryServer
    versions: list[Image]

    @property
    def references(self) -> list[str]:
        return [self.server.server.reference(reference) for reference in REFERENCES]

    def move_tags(self, chance: random.Random) -> None:
        for reference in REFERENCES:
            self.server.library.add(reference, chance.choice(self.versions))


def failpoints() -> tuple[str, ...]:
    """Every failpoint's name, from the source."""
    places = re.compile(r'reach\("([a-z-]+)"\)')
    text = "".join(path.read_text() for path in sorted((TOP / "imagestore").rglob("*.py")))
    return tuple(sorted(set(places.findall(text))))


def crash(kills: int, *, seed: int, say: bool = False) -> Outcome:
    """Run the harness.

    Args:
        kills: how many processes to kill at least.
        seed: decides what happens.
        say: print a line now and then.
    """
    outcome, chance = Outcome(), random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with _registry() as registry, tempfile.TemporaryDirectory(prefix="imagestore-crash-") as folder:
        failures = Path(folder) / "failures"
        failures.mkdir()
        root = Path(folder) / "store"
        _make_archive(registry.references, Path(folder))
        while outcome.kills < kills:
            before = len(outcome.violations)
            registry.move_tags(chance)
            _round(context, root, registry.references, chance, failures, outcome)
            _judge(root, failures, outcome)
            if len(outcome.violations) > before or chance.random() < 0.1:
                # A fresh store, so that the first steps are hit too and one wrong is counted once.
                shutil.rmtree(root, ignore_errors=True)
            elif chance.random() < 0.2:
                _age(root)
            if say and outcome.kills % 50 < WORKERS:
                print(outcome, flush=True)
    return outcome


def _round(
    context: ForkServerContext,
    root: Path,
    references: list[str],
    chance: random.Random,
    failures: Path,
    outcome: Outcome,
) -> None:
    """Let some processes work at once until each is dead."""
    from tests.crash.worker import run

    names = failpoints()
    running: list[tuple[ForkServerProcess, str, float]] = []
    for _ in range(WORKERS):
        place = _place(chance, names)
        end = time.monotonic() + (LONGEST_SECONDS if place else chance.uniform(0.05, 0.6))
        arguments = (root, references, chance.randrange(2**32), place, failures)
        process = context.Process(target=run, args=arguments, daemon=True)
        process.start()
        running.append((process, place, end))
    for process, place, end in sorted(running, key=lambda each: each[2]):
        process.join(max(0.0, end - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()
            place = ""
        if process.exitcode == -9:
            outcome.kills += 1
            outcome.places[place.partition(":")[0] or "outside"] += 1


def _place(chance: random.Random, names: tuple[str, ...]) -> str:
    kind = chance.random()
    if kind < 0.2:
        return ""
    if kind < 0.6:
        return f"*:{chance.randrange(1, 400)}"
    return f"{chance.choice(names)}:{chance.randrange(1, 6)}"


def _judge(root: Path, failures: Path, outcome: Outcome) -> None:
    from tests.crash.invariants import violations

    try:
        found = violations(root) if root.exists() else []
    except Exception as error:  # noqa: BLE001 - whatever goes wrong while judging is a finding
        found = [f"{type(error).__name__}: {error}"]
    for report in failures.iterdir():
        found.append(report.read_text())
        report.unlink()
    for violation in found:
        print(f"VIOLATION {violation}", flush=True)
    outcome.violations += found


def _age(root: Path) -> None:
    """Let a day pass: leases expire, ingests become stale, a collection takes them."""
    from imagestore.store import ImageStore
    from tests.crash.invariants import LATER_SECONDS

    with ImageStore(root, clock=lambda: time.time() + LATER_SECONDS) as store:
        store.collect_garbage()


def _make_archive(references: list[str], folder: Path) -> None:
    """One archive of all references, for the processes that import."""
    from imagestore import config, platforms
    from imagestore.archive.exporting import ExportOptions
    from imagestore.store import ImageStore
    from tests.support.node import CONFIG

    host = platforms.parse("windows(10.0.20348)/amd64")
    settings = config.loads(CONFIG, filename="config.toml", host=host)
    with ImageStore(folder / "source", config=settings, host=host) as store:
        for reference in references:
            store.pull(reference)
        store.export_images(references, folder / ARCHIVE, options=ExportOptions())


@contextlib.contextmanager
def _registry() -> Iterator[_Registry]:
    """Four references that share a base layer; each moves between three versions of its image."""
    base = [layer("base of all")]
    versions = [
        build_index(PLATFORMS, seed=f"version {number}", shared=[*base, synthetic_layer(f"large {number}", 512 * 600)])
        for number in range(3)
    ]
    with RegistryServer(dict.fromkeys(REFERENCES, versions[0])) as server:
        yield _Registry(server, versions)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill processes at work on a store and judge what is left.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    outcome = crash(arguments.kills, seed=arguments.seed, say=True)
    print(", ".join(f"{place} {count}" for place, count in sorted(outcome.places.items())))
    for violation in outcome.violations:
        print(f"VIOLATION {violation}")
    print(outcome)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
