"""Kills processes at work on one store, at failpoints and at random, and judges what is left after each.

    python -m tests.crash --kills 1000 [--seed 7]

ends with ``N kills, M violations``; the exit status is 1 when there was one. A seed repeats the decisions, though not
the kernel's scheduling.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import math
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

from imagestore import Digest, ImageStore
from imagestore.content.direct_io import LEAST_LARGE_BYTES
from imagestore.testing import RegistryServer, build_index, layer, synthetic_layer
from tests.crash.invariants import LATER_SECONDS, broken_backups, copied, violations
from tests.crash.worker import Place, repair, run
from tests.support.node import PLATFORMS
from tests.unit.store.archive import making

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess

    from imagestore.testing import Image

TOP = Path(__file__).parents[2]
REFERENCES = tuple(f"registry.example/crash/{name}:1" for name in ("a", "b", "c", "d"))
WORKERS = 3
LONGEST_SECONDS = 1.5
#: Of each version's largest layer: one has an ingest and several buffers, the others come whole without an ingest.
LARGE_BYTES = (LEAST_LARGE_BYTES + 512 * 1367, 512 * 600, 512 * 600)
_PRELOADED = [
    *(
        "httpx",
        "jsonschema",
        "imagestore.store.image_store",
        "imagestore.store.pull.pull_work",
        "imagestore.registry.client_factory",
    ),
    *("imagestore.store.archive.importing", "imagestore.store.archive.source", "imagestore.store.maintenance.rebuild"),
]


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
        place = _prepared(Path(folder), registry)
        while outcome.kills < kills:
            before = len(outcome.violations)
            registry.move_tags(chance)
            if chance.random() < 0.3 and place.root.exists():
                _release(place.root)
            _round(context, place, chance, outcome)
            _judge(place, outcome)
            if chance.random() < 0.1 and place.root.exists():
                _mending_round(context, place, chance, outcome)
                _judge(place, outcome)
            if len(outcome.violations) > before or chance.random() < 0.1:
                # A fresh store, so that the first steps are hit too and one wrong is counted once.
                shutil.rmtree(place.root, ignore_errors=True)
            elif chance.random() < 0.2:
                _age(place.root)
            if say and outcome.kills % 50 < WORKERS:
                print(outcome, flush=True)
    return outcome


def _prepared(folder: Path, registry: _Registry) -> Place:
    """The folders that workers use: archives of every version under the registry's names, a source of some blobs."""
    place = Place(
        root=folder / "store",
        references=registry.references,
        archives=tuple(folder / "archives" / name for name in ("0", "1.tar", "2.tar.gz")),
        source=folder / "source",
        backups=folder / "backups",
        failures=folder / "failures",
    )
    for each in (folder / "archives", place.backups, place.failures):
        each.mkdir()
    for path, version in zip(place.archives, registry.versions, strict=True):
        files = making.layout_files(dict.fromkeys(place.references, version))
        making.write(path, gzip.compress(making.tar_of(files)) if path.suffix == ".gz" else files)
    making.write(place.source, making.layout_files({"": registry.versions[0]}))
    for number, path in enumerate(sorted((place.source / "blobs").rglob("*"))):
        # Of those that nobody may write some are linked, the others copied (or shared, where the disk can).
        if path.is_file() and number % 2:
            path.chmod(0o444)
    return place


def _round(context: ForkServerContext, place: Place, chance: random.Random, outcome: Outcome) -> None:
    """Let some processes work at once until each is dead."""
    names = failpoints()
    running: list[tuple[ForkServerProcess, str, float]] = []
    for _ in range(WORKERS):
        failpoint = _failpoint(chance, names)
        end = time.monotonic() + (LONGEST_SECONDS if failpoint else chance.uniform(0.05, 0.6))
        process = context.Process(target=run, args=(place, chance.randrange(2**32), failpoint), daemon=True)
        process.start()
        running.append((process, failpoint, end))
    for process, failpoint, end in sorted(running, key=lambda each: each[2]):
        _ended(process, failpoint, end, outcome)


def _release(root: Path) -> None:
    """Nobody is at work; what the dead held is let go, as it would be in an hour."""
    with ImageStore(root) as store:
        for held in store.metadata.leases.find():
            if not math.isinf(held.expires_at):
                store.metadata.leases.delete(held.id)


def _mending_round(context: ForkServerContext, place: Place, chance: random.Random, outcome: Outcome) -> None:
    """Damage the database or a blob; kill some that repair it; the last one must bring every record back."""
    with ImageStore(place.root) as store:
        before = {(image.reference, image.runtime_handler): image.record.held for image in store.list()}
        if chance.random() < 0.5:
            store.metadata.keep_copy(at_once=True)
        needed = {digest for image in store.list() for digest in (image.id, image.manifest.digest, *image.record.roots)}
    promised = set(before)
    if needed and chance.random() < 0.5:
        _spoil_blob(place.root, chance.choice(sorted(needed)))
        names = tuple(name for name in failpoints() if not name.startswith("rebuild"))
    else:
        _spoil_database(place.root, chance)
        names = tuple(name for name in failpoints() if name.startswith(("rebuild", "copy", "note", "database")))
        records, _ = copied(place.root)
        promised = {key for key, held in before.items() if records.get(key) == held}
    for failpoint in (*(f"{chance.choice(names)}:{chance.randrange(1, 4)}" for _ in range(3)), ""):
        process = context.Process(target=repair, args=(place, failpoint), daemon=True)
        process.start()
        # The last one is never killed while it works.
        _ended(process, failpoint, time.monotonic() + (20 if failpoint else 300), outcome)
    with ImageStore(place.root) as store:
        after = {(image.reference, image.runtime_handler) for image in store.list()}
    # Not the other way round: what was removed after the copy was made may come back.
    if lost := promised - after:
        _violated(outcome, f"repairing lost {sorted(lost)}")
    for path in place.root.glob("metadata.db.damaged-*"):
        path.unlink()


def _spoil_blob(root: Path, digest: Digest) -> None:
    path = root / "content" / "blobs" / digest.algorithm / digest.encoded
    path.chmod(0o644)
    path.write_bytes(b"not what it was")
    path.chmod(0o444)


def _spoil_database(root: Path, chance: random.Random) -> None:
    path = root / "metadata.db"
    if chance.random() < 0.5:
        for each in root.glob("metadata.db*"):
            each.unlink()
    else:
        with open(path, "r+b") as file:
            file.write(chance.randbytes(4096))


def _ended(process: ForkServerProcess, failpoint: str, end: float, outcome: Outcome) -> None:
    process.join(max(0.0, end - time.monotonic()))
    if process.exitcode is None:
        process.kill()
        process.join()
        failpoint = ""
    if process.exitcode == -9:
        outcome.kills += 1
        outcome.places[failpoint.partition(":")[0] or "outside"] += 1


def _failpoint(chance: random.Random, names: tuple[str, ...]) -> str:
    kind = chance.random()
    if kind < 0.2:
        return ""
    if kind < 0.6:
        return f"*:{chance.randrange(1, 400)}"
    return f"{chance.choice(names)}:{chance.randrange(1, 6)}"


def _judge(place: Place, outcome: Outcome) -> None:
    try:
        found = violations(place.root) if place.root.exists() else []
        found += broken_backups(place.backups)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong while judging is a finding
        found = [f"{type(error).__name__}: {error}"]
    for report in place.failures.iterdir():
        found.append(report.read_text())
        report.unlink()
    for violation in found:
        _violated(outcome, violation)


def _violated(outcome: Outcome, violation: str) -> None:
    print(f"VIOLATION {violation}", flush=True)
    outcome.violations.append(violation)


def _age(root: Path) -> None:
    """Let a day pass: leases expire, ingests become stale, a collection takes them."""
    with ImageStore(root, clock=lambda: time.time() + LATER_SECONDS) as store:
        store.collect_garbage()


@contextlib.contextmanager
def _registry() -> Iterator[_Registry]:
    """Four references that share a base layer; each moves between three versions of its image."""
    base = [layer("base of all")]
    versions = [
        build_index(PLATFORMS, seed=f"version {number}", shared=[*base, synthetic_layer(f"large {number}", size)])
        for number, size in enumerate(LARGE_BYTES)
    ]
    with RegistryServer(dict.fromkeys(REFERENCES, versions[0])) as server:
        # What was imported and is damaged can be fetched, whether or not the tag was ever there.
        for reference in REFERENCES:
            for version in reversed(versions):
                server.library.add(reference, version)
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
