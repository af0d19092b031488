"""What replaying costs: a synthetic layer of 1 GiB from the loopback server, and the memory it takes.

    python benchmarks/replay_bench.py [--mebibytes 1024] [--pull]

Prints, per way, MiB/s and the growth of this process's peak memory. ``generate`` is the synthetic stream alone,
``socket`` a client that throws the bytes away (so it is the server's own limit), ``httpx`` a client that hashes,
``transport`` the same without a socket, and with ``--pull`` our own store, which also hashes and writes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import socket
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import httpx

from imagestore.testing import Registry, build_image, synthetic_layer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REFERENCE = "registry.example/big/layer:1"


def generate(registry: Registry) -> None:
    """Compute the bytes, and nothing else."""
    for _ in _layer_body(registry):
        pass


def drain_socket(registry: Registry) -> None:
    """Read as fast as a socket gives."""
    digest = _layer_digest(registry)
    with registry.serve() as server:
        host, _, port = server.address.partition(":")
        with socket.create_connection((host, int(port))) as connection:
            request = f"GET /v2/big/layer/blobs/{digest} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode())
            room = bytearray(1 << 20)
            while connection.recv_into(room):
                pass


def read_httpx(registry: Registry) -> None:
    """Read and hash over a socket."""
    with registry.serve() as server, httpx.Client() as client:
        _hash(client, f"{server.url}/v2/big/layer/blobs/{_layer_digest(registry)}")


def read_transport(registry: Registry) -> None:
    """Read and hash without a socket."""
    with httpx.Client(transport=registry.transport) as client:
        _hash(client, f"https://registry.example/v2/big/layer/blobs/{_layer_digest(registry)}")


def pull(registry: Registry) -> None:
    """Pull into a store of our own."""
    from imagestore import ImageStore

    with registry.serve() as server, tempfile.TemporaryDirectory() as folder, ImageStore(folder) as store:
        store.pull(server.reference(REFERENCE), platform="linux/amd64")


def _hash(client: httpx.Client, address: str) -> None:
    digester = hashlib.sha256()
    with client.stream("GET", address, timeout=60) as answer:
        for piece in answer.iter_raw():
            digester.update(piece)
    expected = address.rpartition(":")[2]
    if digester.hexdigest() != expected:
        sys.exit(f"the bytes hash to {digester.hexdigest()}, expected {expected}")


def _layer_digest(registry: Registry) -> str:
    (repository,) = [one for _, _, one in registry.library.items()]
    return str(max(repository.blobs, key=lambda digest: repository.blobs[digest].size))


def _layer_body(registry: Registry) -> Iterator[bytes]:
    (repository,) = [one for _, _, one in registry.library.items()]
    return max(repository.blobs.values(), key=lambda body: body.size).chunks()


def measure(name: str, work: Callable[[Registry], None], registry: Registry, mebibytes: int) -> None:
    """Run one way in a child, so that its peak memory is its own."""
    child = os.fork()
    if child == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        work(registry)
        seconds = time.perf_counter() - started
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(
            f"{name:10} {mebibytes / seconds:8.0f} MiB/s   {seconds:6.2f} s   peak memory +{grown:.0f} MiB", flush=True
        )
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{name} failed")


def main() -> None:
    """Measure every way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--pull", action="store_true")
    options = parser.parse_args()
    layer = synthetic_layer("benchmark", options.mebibytes << 20)
    registry = Registry({REFERENCE: build_image("linux/amd64", layers=[layer])})
    ways = {"generate": generate, "socket": drain_socket, "httpx": read_httpx, "transport": read_transport}
    for name, work in (ways | ({"pull": pull} if options.pull else {})).items():
        measure(name, work, registry, options.mebibytes)


if __name__ == "__main__":
    main()
