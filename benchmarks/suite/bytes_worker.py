"""The bytes of an image alone: received and thrown away, then hashed, then written, and nothing else.

    python -m benchmarks.suite.bytes_worker REGISTRY-PROCESS ADDRESS REPOSITORY FOLDER [AUTHORITY]

Prints, as JSON, the least wall time that a verified pull can take here, and its least CPU seconds. The CPU seconds are
those of the three steps together. However they overlap, the processors must also do the registry's part; so the wall
time is at least the sum by the number of processors, and at least what writing alone takes, several layers at once.
Starting, deciding and recording come on top of it. With AUTHORITY (a file) the registry is asked over TLS.
"""

from __future__ import annotations

import hashlib
import http.client
import itertools
import json
import mmap
import os
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.suite.cost import processor_seconds
from imagestore.oci.media_types import OCI_INDEX, OCI_MANIFEST

# A huge page, where the system has them.
_BUFFER_BYTES = 2 << 20
_BLOCK_BYTES = 4096
_WRITERS = 8

_T = TypeVar("_T")


def main() -> None:
    """Measure what is asked for."""
    process, address, repository, folder, *authority = sys.argv[1:]
    connection = _connection(address, *authority)
    layers = _layers(connection, f"/v2/{repository}")
    buffer = mmap.mmap(-1, _BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer.madvise(mmap.MADV_HUGEPAGE)
    buffer.write(os.urandom(_BUFFER_BYTES))

    served = processor_seconds(int(process))
    _, received = _spent(lambda: _each(layers, lambda layer: _receive(connection, layer, memoryview(buffer))))
    served = processor_seconds(int(process)) - served
    _, hashed = _spent(lambda: _each(layers, lambda layer: _hash(memoryview(buffer), layer.size)))
    with ThreadPoolExecutor(_WRITERS) as writers:
        ways = [partial(_write, Path(folder, str(number)), buffer, layer.size) for number, layer in enumerate(layers)]
        writing, written = _spent(lambda: _each([writers.submit(way) for way in ways], Future.result))

    least = received + hashed + written
    print(json.dumps([max(writing, (least + served) / len(os.sched_getaffinity(0))), least]))


def _connection(address: str, authority: str | None = None) -> http.client.HTTPConnection:
    if authority is None:
        return http.client.HTTPConnection(address)
    return http.client.HTTPSConnection(address, context=ssl.create_default_context(cafile=authority))


class _Layer(NamedTuple):
    path: str
    size: int


def _layers(connection: http.client.HTTPConnection, base: str) -> list[_Layer]:
    """Those of the image that is tagged "1", for the only platform it has."""
    document = _get(connection, f"{base}/manifests/1")
    if "manifests" in document:
        document = _get(connection, f"{base}/manifests/{document['manifests'][0]['digest']}")
    return [_Layer(f"{base}/blobs/{each['digest']}", each["size"]) for each in document["layers"]]


def _get(connection: http.client.HTTPConnection, path: str) -> Any:
    connection.request("GET", path, headers={"Accept": f"{OCI_INDEX}, {OCI_MANIFEST}"})
    return json.loads(connection.getresponse().read())


def _receive(connection: http.client.HTTPConnection, layer: _Layer, buffer: memoryview) -> None:
    connection.request("GET", layer.path)
    response = connection.getresponse()
    received = 0
    while count := response.readinto(buffer):
        received += count
    if response.status != http.HTTPStatus.OK or received != layer.size:
        sys.exit(f"{layer.path}: status {response.status}, {received} of {layer.size} bytes")


def _hash(buffer: memoryview, size: int) -> None:
    sha256 = hashlib.sha256()
    for piece in _pieces(size):
        sha256.update(buffer[:piece])
    sha256.hexdigest()


def _write(path: Path, buffer: mmap.mmap, size: int) -> None:
    """Past the page cache where that is possible, as the store does; and durable, but for the name."""
    view = memoryview(buffer)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    whole = size - size % _BLOCK_BYTES
    try:
        direct = os.open(path, flags | os.O_DIRECT)
    except OSError:  # EINVAL: not here
        path.unlink(missing_ok=True)
        direct, whole = os.open(path, flags), size
    for piece in _pieces(whole):
        os.write(direct, view[:piece])
    os.close(direct)
    plain = os.open(path, os.O_WRONLY)
    os.pwrite(plain, view[: size - whole], whole)
    os.fsync(plain)
    os.close(plain)


def _pieces(size: int) -> itertools.chain[int]:
    rest = size % _BUFFER_BYTES
    return itertools.chain(itertools.repeat(_BUFFER_BYTES, size // _BUFFER_BYTES), [rest] if rest else [])


def _each(items: Iterable[_T], work: Callable[[_T], None]) -> None:
    for item in items:
        work(item)


def _spent(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    started, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - spent


if __name__ == "__main__":
    main()
