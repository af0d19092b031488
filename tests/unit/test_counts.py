"""What a pull costs in numbers that no machine changes: requests, bytes, system calls, memory; times: `make bench`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import imagestore
from benchmarks import tiny_layout
from imagestore import Digest, ImportOptions
from imagestore.testing import Ledger, RegistryServer, build_image, build_index, layer, synthetic_layer
from tests.support.embedded import database_of
from tests.support.node import HYPERV, PROCESS, PYTHON, Node, node, python_image

MIB = 1 << 20
#: More than manifest and config have in these images.
DOCUMENT_BYTES = 8 * 1024
#: Less than share their base layer.
TINY_IMAGES = 40
WARM, MEASURED = "registry.example/warm:1", "registry.example/measured:1"

# Pulls one image so that everything is loaded and connected, then another one under observation.
COUNTING = """
import json, mmap, os, sys, threading, tracemalloc
import imagestore

calls, called, mapped = {}, [], []

def count(name):
    real = getattr(os, name)
    def call(*arguments, **options):
        counted = calls.setdefault(name, [])
        counted.append(0)
        answer = real(*arguments, **options)
        if name == "pwrite":
            calls.setdefault("bytes", []).append(answer)
        return answer
    setattr(os, name, call)

for name in ("pwrite", "fsync", "open", "rename", "mkdir", "unlink", "lstat"):
    count(name)
real_mmap = mmap.mmap
def mapping(descriptor, length, *arguments):
    mapped.append(length)
    return real_mmap(descriptor, length, *arguments)
mmap.mmap = mapping
with imagestore.open(sys.argv[1]) as store:
    store.pull(sys.argv[2], platform="linux/amd64")
    calls.clear()
    if sys.argv[4] == "calls":
        profile = lambda frame, event, argument: event in ("call", "c_call") and called.append(event)
        threading.setprofile(profile)
        sys.setprofile(profile)
    else:
        tracemalloc.start()
    store.pull(sys.argv[3], platform="linux/amd64")
    sys.setprofile(None)
    peak = tracemalloc.get_traced_memory()[1]
written = sum(calls.pop("bytes"))
counts = {name: len(each) for name, each in calls.items()}
print(json.dumps({"peak": peak, "mapped": sum(mapped), "calls": len(called), "bytes": written, **counts}))
"""


def counts_of(folder: Path, mebibytes: list[int], *, profiled: bool = False) -> dict[str, Any]:
    """Counts of a pull of an image with such layers, in a process of its own; of memory or of calls."""
    layers = [synthetic_layer(f"layer {number}", size * MIB) for number, size in enumerate(mebibytes)]
    images = {WARM: build_image(layers=[layer("warm")]), MEASURED: build_image(layers=layers)}
    with RegistryServer(images) as server:
        names = [server.server.reference(each) for each in (WARM, MEASURED)]
        command = [sys.executable, "-c", COUNTING, str(folder / "store"), *names, "calls" if profiled else "memory"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def requests(ledger: Ledger, since: int = 0) -> Counter[tuple[str, str]]:
    """How often each thing was asked for."""
    return Counter((entry.method, entry.path.rpartition("/")[2]) for entry in ledger.entries[since:])


@pytest.fixture
def expected() -> Counter[tuple[str, str]]:
    """The tag's document, then everything of the process handler's manifest once."""
    chosen = python_image().manifests[2]
    parts = [chosen.descriptor, chosen.config, *chosen.layers]
    return Counter([("GET", "3"), *(("GET", str(part.digest)) for part in parts)])


def test_a_cold_pull_asks_once_for_everything_it_needs(tmp_path: Path, expected: Counter[tuple[str, str]]) -> None:
    with node(tmp_path) as here:
        here.store.pull(PYTHON, runtime_handler=PROCESS)
        assert requests(here.registry.ledger) == expected


def test_another_handler_asks_only_for_what_is_not_here(tmp_path: Path) -> None:
    image = python_image()
    chosen, known = image.manifests[3], image.manifests[2].layers
    needed = [chosen.descriptor, chosen.config, *(each for each in chosen.layers if each not in known)]
    assert len(needed) < 2 + len(chosen.layers)
    with node(tmp_path) as here:
        here.store.pull(PYTHON, runtime_handler=PROCESS)
        before = here.registry.ledger.count()
        here.store.pull(PYTHON, runtime_handler=HYPERV)
        assert requests(here.registry.ledger, before) == Counter(
            [("HEAD", "3"), *(("GET", str(part.digest)) for part in needed)]
        )
        assert_nothing_twice(here)


@pytest.mark.parametrize("platform", ["windows(10.0.20348)/amd64", None], ids=["asked for", "the handler's"])
def test_an_unchanged_tag_costs_one_head_and_no_byte(tmp_path: Path, platform: str | None) -> None:
    with node(tmp_path) as here:
        here.store.pull(PYTHON, platform=platform)
        before = here.registry.ledger.count()
        here.store.pull(PYTHON, platform=platform)
        (entry,) = here.registry.ledger.entries[before:]
        assert (entry.method, entry.sent_bytes) == ("HEAD", 0)


def test_the_same_manifest_under_another_handler_costs_one_head(tmp_path: Path) -> None:
    with node(tmp_path, {PYTHON: build_index(["linux/amd64"])}) as here:
        here.store.pull(PYTHON, runtime_handler="kata")
        before = here.registry.ledger.count()
        here.store.pull(PYTHON, platform="linux/amd64", runtime_handler=PROCESS)
        assert [entry.method for entry in here.registry.ledger.entries[before:]] == ["HEAD"]
        assert_nothing_twice(here)


def test_a_pull_by_digest_that_is_here_costs_one_head(tmp_path: Path) -> None:
    pinned = f"registry.example/library/python@{python_image().target.digest}"
    with node(tmp_path) as here:
        here.store.pull(pinned)
        before = here.registry.ledger.count()
        here.store.pull(pinned)
        assert [entry.method for entry in here.registry.ledger.entries[before:]] == ["HEAD"]


def test_a_large_layer_is_written_once_in_large_pieces_and_synced_once(tmp_path: Path) -> None:
    found = counts_of(tmp_path, [32])
    assert 0 <= found["bytes"] - 32 * MIB < DOCUMENT_BYTES
    # Buffers of two mebibytes; a tail that the disk doesn't take past the page cache would be one more; two documents.
    assert found["pwrite"] <= 16 + 1 + 2
    # The data of manifest, config and layer; then the folder, once before the record is written.
    assert found["fsync"] <= 4
    assert found["rename"] == 3


def test_memory_does_not_grow_with_the_layer(tmp_path: Path) -> None:
    small, large = (counts_of(tmp_path / str(size), [size]) for size in (8, 40))
    assert large["peak"] - small["peak"] < MIB // 2
    assert large["peak"] < 4 * MIB
    # Buffers aren't seen there: two.
    assert large["mapped"] == small["mapped"] == 2 * 2 * MIB


def test_each_further_small_layer_costs_one_file_that_is_written_synced_and_named_once(tmp_path: Path) -> None:
    few, more = (counts_of(tmp_path / str(count), [1] * count) for count in (2, 8))
    further = {name: (more[name] - few[name]) / 6 for name in few}
    assert 0 <= more["bytes"] - 8 * MIB < DOCUMENT_BYTES
    # Its lock, and its file.
    assert further["open"] == 2
    # Whole blocks, and what is left.
    assert further["pwrite"] <= 2
    assert (further["fsync"], further["rename"], further["mkdir"]) == (1, 1, 0)
    # The lock; there is nothing else to clear away.
    assert further["unlink"] == 1
    # Before the pull, of the space, before and under the lock, of an ingest, of ballast (twice), of the name, finally.
    assert further["lstat"] <= 9


def test_each_further_small_layer_costs_few_calls(tmp_path: Path) -> None:
    few, more = (counts_of(tmp_path / str(count), [1] * count, profiled=True) for count in (2, 12))
    # About 2,550. Under load some more: it depends on how many pieces the body comes in.
    assert (more["calls"] - few["calls"]) / 10 < 2900


def test_each_further_tiny_image_of_an_import_costs_few_looks_and_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: Counter[str] = Counter()

    def count(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            called[name] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("lstat", "open"):
        count(name)

    def counts_of_import(images: int) -> dict[str, int]:
        layout = tmp_path / f"layout-{images}"
        tiny_layout.write_layout(layout, images)
        with imagestore.open(tmp_path / f"store-{images}") as store:
            called.clear()
            store.import_images(layout, options=ImportOptions(platform="linux/amd64"))
            return dict(called)

    few, more = counts_of_import(TINY_IMAGES), counts_of_import(2 * TINY_IMAGES)
    further = {name: (more[name] - few[name]) / TINY_IMAGES for name in few}
    # Three blobs: before the work, under the lease, of the ballast (twice), of the name, before the record; two are
    # documents, read early.
    assert further["lstat"] <= 3 * 6 + 2 + 1
    # Read from two folders deep, and written.
    assert further["open"] <= 3 * (2 + 1 + 1) + 1


def assert_nothing_twice(here: Node) -> None:
    """No byte of any content went out more than once."""
    sizes: dict[Digest, int] = {}
    for image in here.store.list():
        for part in (image.target, image.manifest, *image.layers):
            sizes[part.digest] = part.size
    sent = here.registry.ledger.bytes_by_digest()
    assert {digest: sent[digest] for digest in sizes} == sizes


def test_a_pull_syncs_the_database_once(tmp_path: Path) -> None:
    is_synced, synced = [True], []

    def note(statement: str) -> None:
        if statement.startswith("PRAGMA synchronous"):
            is_synced.append(statement.endswith("FULL"))
        elif statement == "COMMIT" and is_synced[-1]:
            synced.append(statement)

    with node(tmp_path) as here:
        database_of(here.store).database._connection.set_trace_callback(note)
        here.store.pull(PYTHON, runtime_handler=PROCESS)
        assert len(synced) == 1
        here.store.pull(PYTHON, runtime_handler=PROCESS)
        assert len(synced) == 1
        database_of(here.store).database._connection.set_trace_callback(None)
