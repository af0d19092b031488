"""Kills processes at work on one shared store (PostgreSQL and a bucket), and judges what is left.

    python -m tests.crash.shared --kills 200 [--restarts 10] [--seed 7] [--variant look-without-share]

ends with ``N kills, M unexpected failures, L violations``; the exit status is 1 when there was one. Half of the
restarts are PostgreSQL's, which is stopped as by a crash, the others the gateway's. A variant leaves out one rule of
the protocol, and must be noticed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.crash import shared_images, shared_judge
from tests.crash.shared_variants import VARIANTS
from tests.crash.shared_worker import Place, prepare, run
from tests.support.ceph import ACCESS_KEY, SECRET_KEY, Ceph, ceph
from tests.support.postgres import Postgres, postgres
from tests.unit.store.archive import making

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess

WORKERS: Final = 6
#: What is left is judged after so many kills.
ROUND_KILLS: Final = 50
#: Between two kills so much time passes and so much work is done, however busy the machine is.
KILL_SECONDS: Final = 0.25
KILL_WORK: Final = 10
LEASE_SECONDS: Final = 2.0
_PATIENCE_SECONDS: Final = 120.0
_BUCKET: Final = "shared"
#: Digits, and what stands in quotes or URLs: failures of one kind are counted together.
_PARTICULARS: Final = re.compile(r"(sha256:)?[0-9a-f]{12,}|registry\.example/\S+|[0-9]+")
_PRELOADED: Final = [
    "httpx",
    "jsonschema",
    "psycopg",
    "psycopg_pool",
    "imagestore.metadata.postgres",
    "imagestore.content.bucket_store",
    "imagestore.store.image_store",
    "imagestore.store.pull.pull_work",
    "imagestore.store.archive.importing",
    "imagestore.registry.client_factory",
    "imagestore.testing",
    "tests.crash.shared_worker",
]


@dataclass
class Outcome:
    """What a run of the harness saw.

    Attributes:
        kills: processes that died by SIGKILL while they had the store open.
        restarts: of PostgreSQL and of the gateway.
        done: how many operations of each kind came to their end.
        swept: how much content was collected, since PostgreSQL's last restart.
        failed: how many failed, by what was said.
        unexpected: failures of operations that had no reason to fail.
        violations: broken promises, in one line each.
    """

    kills: int = 0
    restarts: int = 0
    done: Counter[str] = field(default_factory=Counter)
    swept: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kills} kills, {len(self.unexpected)} unexpected failures, {len(self.violations)} violations"

    def violated(self, text: str) -> None:
        """Note a broken promise."""
        print(f"VIOLATION {text}", flush=True)
        self.violations.append(text)


@dataclass
class _Crew:
    """The workers of one round."""

    context: ForkServerContext
    place: Place
    chance: random.Random
    running: dict[int, ForkServerProcess] = field(default_factory=dict)
    begun: int = 0

    def fill(self) -> None:
        """Start workers for those that are gone."""
        for number in [number for number, process in self.running.items() if process.exitcode is not None]:
            del self.running[number]
        while len(self.running) < WORKERS:
            self.begun += 1
            arguments = (self.place, self.begun, self.chance.randrange(2**32))
            process = self.context.Process(target=run, args=arguments, daemon=True)
            process.start()
            self.running[self.begun] = process

    def work(self) -> int:
        """How many operations have ended in this round."""
        reports = (self.place.folder / "reports").iterdir()
        return sum(path.read_bytes().count(b"\n") for path in reports)

    def kill_one(self) -> bool:
        """Kill one that is at work; False when none is."""
        ready = [number for number in self.running if self.place.report(number).exists()]
        if not ready:
            return False
        process = self.running.pop(self.chance.choice(ready))
        process.kill()
        process.join()
        return process.exitcode == -9

    def kill_all(self) -> None:
        """End the round."""
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.join()
        self.running.clear()


def crash(kills: int, *, seed: int, restarts: int = 0, variant: str = "", says: bool = False) -> Outcome:
    """Run the harness.

    Args:
        kills: how many processes to kill.
        seed: decides what happens, though not the scheduling.
        restarts: how often PostgreSQL or the gateway is killed and started again, spread over the kills.
        variant: the rule to leave out; see VARIANTS.
        says: print a line after each round.
    """
    outcome, chance = Outcome(), random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    due = {round((number + 1) * kills / (restarts + 1)) for number in range(restarts)}
    # Without fsync: processes are killed here, not the machine.
    with ceph() as gateway, postgres({"fsync": "off"}) as server, _prepared(gateway, server, variant) as place:
        prepare(place, machine=0)
        crew = _Crew(context, place, chance)
        while outcome.kills < kills:
            _round(crew, min(kills, outcome.kills + ROUND_KILLS), due, gateway, server, outcome)
            outcome.swept = shared_judge.swept(place)
            _read_reports(place, outcome, is_calm=not restarts)
            for line in shared_judge.violations(place, gateway):
                outcome.violated(line)
            if says:
                print(outcome, dict(outcome.done), outcome.swept, flush=True)
    return outcome


@contextmanager
def _prepared(gateway: Ceph, server: Postgres, variant: str) -> Iterator[Place]:
    assert gateway.make_bucket(_BUCKET)
    with tempfile.TemporaryDirectory(prefix="imagestore-shared-") as name:
        folder = Path(name)
        place = Place(
            database=server.url(server.create_database()),
            bucket=f"s3://{_BUCKET}/some/prefix",
            endpoint=gateway.endpoint,
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            scopes=("one", "two", "one"),
            folder=folder,
            lease_seconds=LEASE_SECONDS,
            variant=variant,
        )
        (folder / "reports").mkdir()
        making.write(place.archive, making.layout_files(shared_images.images()))
        yield place


def _round(crew: _Crew, until: int, due: set[int], gateway: Ceph, server: Postgres, outcome: Outcome) -> None:
    """Let workers work, and kill one after the other."""
    last, work = time.monotonic(), 0
    while outcome.kills < until:
        crew.fill()
        time.sleep(KILL_SECONDS)
        if crew.work() - work >= KILL_WORK and crew.kill_one():
            outcome.kills += 1
            last, work = time.monotonic(), crew.work()
        assert time.monotonic() - last < _PATIENCE_SECONDS, "no worker comes to work"
        if outcome.kills in due:
            due.discard(outcome.kills)
            outcome.restarts += 1
            if outcome.restarts % 2:
                server.restart(immediately=True)
            else:
                gateway.kill_gateway()
                gateway.start_gateway()
    crew.kill_all()


def _read_reports(place: Place, outcome: Outcome, *, is_calm: bool) -> None:
    """Count what workers wrote.

    Args:
        place: where they wrote.
        outcome: is added to.
        is_calm: the database and the bucket were there all the time, so that nothing should fail in less than a
            lease's time.
    """
    for path in (place.folder / "reports").iterdir():
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # killed while it wrote
            kind, text = json.loads(line)
            if kind == "done":
                outcome.done[text] += 1
            elif kind == "failed":
                outcome.failed[_PARTICULARS.sub("…", text)] += 1
                if is_calm and "slower than a lease" not in text:
                    outcome.unexpected.append(text)
            else:
                outcome.violated(text)
        path.unlink()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill processes at work on a shared store and judge what is left.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    outcome = crash(
        arguments.kills, seed=arguments.seed, restarts=arguments.restarts, variant=arguments.variant, says=True
    )
    print(", ".join(f"{kind} {count}" for kind, count in sorted(outcome.done.items())))
    print(f"{outcome.restarts} restarts, {outcome.swept} contents swept")
    for text, count in outcome.failed.most_common(20):
        print(f"{count} failed: {text}")
    for text in outcome.unexpected[:20]:
        print(f"unexpected: {text}")
    print(outcome)
    return 1 if outcome.violations or outcome.unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
