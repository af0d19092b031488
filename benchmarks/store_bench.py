"""What store operations cost, how that grows with the number of records, and what containerd takes for the same.

    python -m benchmarks.store_bench [--sizes 1000 10000 100000] [--peers 10000] [--rounds 5] [--folder PLACE]

For each size a store is made with that many images (a manifest, a config and a layer of their own, one base layer for
each hundred), then measured: committing one more image durably, finding one by name and by id, listing a page and all,
deleting one with its bytes, a collection that finds nothing, accounting, the longest wait of a writer in another
process (and of another thread) while a collection frees a tenth of the store, and a collection of everything.
``--peers`` compares with Debian's containerd on a layout of that many images (see ``store_peers``); it must be
installed, and needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.store_peers import Peers
from benchmarks.suite.containerd import is_possible
from imagestore import CancelToken, Descriptor, Digest, Platform
from imagestore.content.local import LocalContentStore
from imagestore.metadata import ImageRecord
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.oci.media_types import OCI_MANIFEST
from imagestore.store.garbage import collect, collect_from
from imagestore.store.maintenance.usage import measure

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

SIZES = (1_000, 10_000, 100_000)
NEVER = CancelToken()
#: Between two writes of the process that waits; without one it would hold the lock most of the time itself.
_PAUSE_SECONDS = 0.005
#: So often each store has its turn at a short operation.
_TURNS = 101


class Bench:
    """One store of one size."""

    def __init__(self, root: Path, size: int) -> None:
        self.root = root
        self.size = size
        self.content = LocalContentStore(root / "content", root / "locks")
        self.metadata = SqliteMetadataStore(root / "metadata.db")
        self.blobs = self.content.root / "blobs" / "sha256"
        with self.metadata.exclusive():
            for number in range(size):
                self.put(number, self._write_fast)

    def put(self, number: int, write: Callable[[bytes], Digest]) -> ImageRecord:
        """An image by number, with ``write`` to store its blobs."""
        parts = [f"config {number}", f"layer {number}", f"base {number // 100}"]
        children = [write(part.encode()) for part in parts]
        manifest = write(f"manifest {number}".encode())
        descriptor = Descriptor(OCI_MANIFEST, manifest, 20)
        record = ImageRecord(
            reference=f"registry.example/bench/image-{number}:1",
            handler="runc",
            target=descriptor,
            manifest=descriptor,
            image_id=children[0],
            platform=Platform("linux", "amd64"),
            wanted="linux/amd64",
            roots=(manifest,),
            content_size=60,
        )
        return self.metadata.images.put(record, {manifest: children})

    def commit(self, data: bytes) -> Digest:
        """Store a blob as a pull does, synced."""
        digest = Digest.of(data)
        if not self.content.exists(digest):
            with self.content.writer(str(digest), expected=digest, total=len(data), cancel=NEVER) as writer:
                writer.write(data)
                writer.commit(digest, len(data))
        return digest

    def key(self, number: int) -> tuple[str, str]:
        """Reference and handler of an image."""
        return f"registry.example/bench/image-{number}:1", "runc"

    def delete(self, number: int) -> None:
        """Remove an image and free its bytes."""
        (removed,) = self.metadata.images.remove([self.key(number)])
        freed = collect_from(self.metadata, self.content, map(str, removed.roots)).freed
        assert len(freed) >= 3

    def _write_fast(self, data: bytes) -> Digest:
        digest = Digest.of(data)
        path = self.blobs / digest.encoded
        if not path.exists():
            path.write_bytes(data)
        return digest


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """Median of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def _write_until(path: Path, stop: Event, answer: multiprocessing.SimpleQueue[tuple[float, int]]) -> None:
    metadata = SqliteMetadataStore(path)
    longest, count = 0.0, 0
    while not stop.is_set():
        start = time.perf_counter()
        metadata.leases.create(f"bench-{count}", lifetime_seconds=60)
        longest = max(longest, time.perf_counter() - start)
        metadata.leases.delete(f"bench-{count}")
        count += 1
        time.sleep(_PAUSE_SECONDS)
    answer.put((longest, count))


def longest_wait(bench: Bench, work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that the slowest write of another process took during some work; and the work."""
    context = multiprocessing.get_context("spawn")
    stop, answer = context.Event(), context.SimpleQueue()
    writer = context.Process(target=_write_until, args=(bench.root / "metadata.db", stop, answer))
    writer.start()
    time.sleep(1)
    whole = seconds(work)
    stop.set()
    longest, _ = answer.get()
    writer.join()
    return longest, whole


def longest_wait_of_a_thread(bench: Bench) -> float:
    """As longest_wait, for a thread of the process that collects, with the next tenth."""
    bench.metadata.images.remove(bench.key(number) for number in range(bench.size // 10, bench.size // 5))
    os.sync()
    done = threading.Event()
    waits = [0.0]

    def write() -> None:
        while not done.is_set():
            waits.append(seconds(lambda: bench.metadata.images.pin([bench.key(bench.size // 2)], is_pinned=False)))
            time.sleep(_PAUSE_SECONDS)

    thread = threading.Thread(target=write)
    thread.start()
    collect(bench.metadata, bench.content)
    done.set()
    thread.join()
    return max(waits)


def collect_everything(bench: Bench) -> None:
    """Remove what is left and free its bytes."""
    bench.metadata.images.remove((each.reference, each.handler) for each in bench.metadata.images.find())
    assert collect(bench.metadata, bench.content).kept_blobs == 0


def short_operations(bench: Bench) -> dict[str, Callable[[], object]]:
    """What takes a few milliseconds at most, by name; to be called many times."""
    size = bench.size
    fresh, doomed = iter(range(size, 2 * size)), iter(range(size - 1, 0, -1))
    middle = bench.key(size // 2)
    prefix = str(Digest.of(f"config {size // 2}".encode()))[:20]
    return {
        "commit one image (4 blobs, synced)": lambda: bench.put(next(fresh), bench.commit),
        "find by name": lambda: bench.metadata.images.get(*middle),
        "find by id": lambda: bench.metadata.images.find(image_id_prefix=prefix),
        "list a page of 100": lambda: bench.metadata.images.find(after=middle, limit=100),
        "delete one image with its bytes": lambda: bench.delete(next(doomed)),
    }


def long_operations(bench: Bench) -> dict[str, float]:
    """Seconds by operation of what takes long; nothing is left afterwards."""
    found = {
        "list all": seconds(bench.metadata.images.find, 5),
        "collect, nothing to free": seconds(lambda: collect(bench.metadata, bench.content), 3),
        "account (df)": seconds(lambda: measure(bench.metadata, bench.content, bench.root)),
    }
    bench.metadata.images.remove(bench.key(number) for number in range(bench.size // 10))
    # Filling and emptying stores leaves hundreds of thousands of files to write back; who syncs then waits for those.
    os.sync()
    longest, whole = longest_wait(bench, lambda: collect(bench.metadata, bench.content))
    found["collect, a tenth freed"] = whole
    found["longest wait of a writer meanwhile"] = longest
    # What the machine alone makes it: the same time without a collection.
    found["longest wait of a writer at rest"], _ = longest_wait(bench, lambda: time.sleep(max(1, whole)))
    found["longest wait of a thread meanwhile"] = longest_wait_of_a_thread(bench)
    found["database, bytes a record"] = (bench.root / "metadata.db").stat().st_size / bench.size / 1000
    found["remove and collect all that is left"] = seconds(lambda: collect_everything(bench))
    return found


def in_turns(benches: Sequence[Bench]) -> dict[str, list[float]]:
    """Medians in seconds of short operations, one for each store, which take turns: machines are slower at times."""
    operations = [short_operations(bench) for bench in benches]
    table: dict[str, list[float]] = {}
    for name in operations[0]:
        rounds = [[seconds(each[name]) for each in operations] for _ in range(_TURNS)]
        table[name] = [sorted(taken)[_TURNS // 2] for taken in zip(*rounds, strict=True)]
    return table


def by_size(sizes: Sequence[int], place: str | None) -> dict[str, list[float]]:
    """Milliseconds by operation, one for each size."""
    with contextlib.ExitStack() as stack:
        benches = []
        for size in sizes:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="imagestore-bench-", dir=place))
            benches.append(Bench(Path(folder), size))
            stack.callback(benches[-1].metadata.close)
        table = in_turns(benches)
        for bench in benches:
            for name, value in long_operations(bench).items():
                table.setdefault(name, []).append(value)
    return {name: [value * 1000 for value in values] for name, values in table.items()}


def growth(sizes: list[int], place: str | None) -> None:
    """Print one line for each operation, one column for each size."""
    table = by_size(sizes, place)
    print(f"{'milliseconds':<38}" + "".join(f"{size:>14,}" for size in sizes))
    for name, values in table.items():
        print(f"{name:<38}" + "".join(f"{value:>14,.2f}" for value in values))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What store operations cost.")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--peers", type=int, default=0, metavar="COUNT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the stores are made")
    arguments = parser.parse_args()
    if arguments.sizes:
        growth(arguments.sizes, arguments.folder)
    if arguments.peers:
        if not is_possible():
            parser.error("containerd and ctr must be installed, and root must ask")
        with tempfile.TemporaryDirectory(prefix="imagestore-peers-", dir=arguments.folder) as folder:
            peers = Peers(Path(folder), arguments.peers)
            peers.run(arguments.rounds)
            print("\n".join(peers.lines()))


if __name__ == "__main__":
    main()
