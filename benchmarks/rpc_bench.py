"""CRI calls on a unix socket: our server and Debian's containerd, each with the same images, asked in turn.

    python -m benchmarks.rpc_bench [1000]

Both import one layout of that many tiny images. Then, in alternating rounds with one client (gRPC's Python, the same
for both), the status of one image and the list of all are asked for; the list is also asked for by eight callers at
once. Medians of all rounds, the 99th percentile, and what each server has in memory. Needs root, like containerd.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from benchmarks import tiny_layout
from imagestore import ImageStore, platforms
from imagestore import config as configuration
from imagestore.protos.cri import api_pb2, api_pb2_grpc
from imagestore.util.rpc import MESSAGE_BYTES
from tests.support.containerd_cri import containerd_cri
from tests.support.peers import need
from tests.support.server import serving

ROUNDS = 20
STATUS_CALLS = 100
LIST_CALLS = 5
CALLERS = 8
_MIB = 1024 * 1024


class Side:
    """One server and what was measured of it."""

    def __init__(self, title: str, endpoint: str) -> None:
        self.title = title
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(endpoint.removeprefix("unix://"))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self._process = struct.unpack("3i", credentials)[0]
        self._channel = grpc.insecure_channel(endpoint, [("grpc.max_receive_message_length", MESSAGE_BYTES)])
        self.stub = api_pb2_grpc.ImageServiceStub(self._channel)
        self.status: list[float] = []
        self.listing: list[float] = []
        self.together: list[float] = []
        self.idle_bytes = self.memory_bytes()

    def memory_bytes(self) -> int:
        """Resident bytes of the server."""
        return int(Path(f"/proc/{self._process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def measure(self, count: int) -> None:
        """One round."""
        request = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=tiny_layout.name(count // 2)))
        self.status += timed(lambda: self.stub.ImageStatus(request), STATUS_CALLS)
        self.listing += timed(self.list, LIST_CALLS)
        with ThreadPoolExecutor(CALLERS) as pool:
            began = time.perf_counter()
            list(pool.map(lambda _: self.list(), range(CALLERS)))
            self.together.append((time.perf_counter() - began) / CALLERS)

    def list(self) -> int:
        """How many images it lists."""
        return len(self.stub.ListImages(api_pb2.ListImagesRequest()).images)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def timed(work: Callable[[], object], count: int) -> list[float]:
    """Seconds of each call."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found


def report(ours: Side, theirs: Side) -> None:
    """A table, times in milliseconds."""
    print(f"{'':34}{ours.title:>14}{theirs.title:>14}{'ratio':>8}")
    rows: list[tuple[str, Callable[[Side], float]]] = [
        ("status of one image, median ms", lambda side: statistics.median(side.status) * 1e3),
        ("status of one image, 99th ms", lambda side: sorted(side.status)[len(side.status) * 99 // 100] * 1e3),
        ("list of all, median ms", lambda side: statistics.median(side.listing) * 1e3),
        ("list of all by eight, ms each", lambda side: statistics.median(side.together) * 1e3),
        ("memory at first, MiB", lambda side: side.idle_bytes / _MIB),
        ("memory at the end, MiB", lambda side: side.memory_bytes() / _MIB),
    ]
    for title, value in rows:
        print(f"{title:34}{value(ours):14.3f}{value(theirs):14.3f}{value(ours) / value(theirs):8.2f}")


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        root, layout, archive = Path(folder) / "root", Path(folder) / "layout", Path(folder) / "images.tar"
        tiny_layout.write_layout(layout, count)
        subprocess.run(["tar", "-C", layout, "-cf", archive, "."], check=True)
        host = platforms.parse("linux/amd64")
        with ImageStore(root, config=configuration.default(host), host=host) as store:
            store.import_images(layout)
        with serving(root) as server, containerd_cri() as endpoint:
            command = [need("ctr"), "--address", endpoint.removeprefix("unix://"), "-n", "k8s.io", "images", "import"]
            subprocess.run([*command, "--no-unpack", str(archive)], check=True, stdout=subprocess.DEVNULL)
            ours, theirs = Side("imagestore", server.endpoint), Side("containerd", endpoint)
            until = time.monotonic() + 60
            while theirs.list() < count and time.monotonic() < until:
                time.sleep(0.2)  # its CRI plugin hears of images by and by
            print(f"images listed: {ours.list()} and {theirs.list()}")
            for _ in range(ROUNDS):
                for side in (ours, theirs):
                    side.measure(count)
            report(ours, theirs)
            ours.close()
            theirs.close()


if __name__ == "__main__":
    main()
