"""A shared store's records: how many pulls a second the database takes, from several processes at once.

What is measured is what a pull asks of the records: a lease over its content, a look at it, the record with its edges,
and the end of the lease. No byte of content moves.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.suite.bench import Bench
from benchmarks.suite.figures import Findings, count
from imagestore import Descriptor, Digest, Platform
from imagestore.metadata import ImageRecord, PostgresMetadataStore
from imagestore.oci.media_types import OCI_MANIFEST
from tests.support.postgres import postgres

_GOAL: Final = 500
_PROCESSES, _THREADS = 4, 4
_SECONDS: Final = 6.0
_IMAGES, _BLOBS = 200, 6


def measure(bench: Bench) -> Findings:
    """Several processes pull images whose content is there; the disk syncs as it does in earnest."""
    with postgres({"fsync": "on"}) as server:
        url = server.url(server.create_database())
        with contextlib.closing(PostgresMetadataStore(url)) as store:
            for image in range(_IMAGES):
                for digest in _content(image):
                    key = f"blobs/sha256/{digest.encoded}/0"
                    store.objects.begin_upload(key)
                    store.objects.publish(digest, 1000, key)
        rates = [sum(_all_at_once(url)) / _SECONDS for _ in range(bench.rounds)]
    spread = f"{statistics.median(rates):.0f} [{min(rates):.0f}-{max(rates):.0f}]"
    work = f"records of pulls, {_PROCESSES} processes with {_THREADS} threads each beside PostgreSQL"
    figure = count("SHARED", work, "pulls a second", statistics.median(rates), goal=_GOAL, unit="/s")
    return Findings(
        figures=[replace(figure, is_lower_bound=True)], details=["", f"{work}: {spread} a second", ""], notes=[]
    )


def _all_at_once(url: str) -> Iterator[int]:
    """How many pulls each process does in the time."""
    command = [sys.executable, "-m", "benchmarks.rows.shared", url]
    workers = [
        subprocess.Popen(
            [*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        for number in range(_PROCESSES)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for worker in workers:
            assert worker.stdout is not None
            yield int(json.loads(worker.stdout.readline()))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _content(image: int) -> list[Digest]:
    # The base layer is every image's.
    own = [Digest.of(f"{image}/{number}".encode()) for number in range(_BLOBS - 1)]
    return [*own, Digest.of(b"base layer")]


def pull(store: PostgresMetadataStore, image: int, handler: str) -> None:
    """What one pull asks of the records."""
    content = _content(image)
    reference = f"registry.example/app-{image}:1"
    lease = f"pull-{time.perf_counter_ns()}-{handler}-{image}"
    with store.leasing():
        store.leases.begin(lease, lifetime_seconds=3600, content=content)
        assert len(store.objects.find_all(content)) == len(content)
    target = Descriptor(OCI_MANIFEST, content[0], 1000)
    platform = Platform("linux", "amd64")
    roots = (content[0],)
    record = ImageRecord(reference, handler, target, target, content[1], platform, "linux/amd64", roots, 6000)
    with store.recording([(reference, handler)]):
        assert len(store.objects.find_all(content)) == len(content)
        store.images.put(record, {content[0]: content[1:]})
        store.leases.end(lease)


def _work(url: str, number: int) -> None:
    with contextlib.closing(PostgresMetadataStore(url)) as store, ThreadPoolExecutor(_THREADS) as threads:

        def until_the_end(thread: int) -> int:
            done, end = 0, time.monotonic() + _SECONDS
            while time.monotonic() < end:
                pull(store, (number * 50 + thread * 13 + done) % _IMAGES, f"handler-{number}-{thread}")
                done += 1
            return done

        pull(store, number, "warm")
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(sum(threads.map(until_the_end, range(_THREADS)))), flush=True)


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]))
