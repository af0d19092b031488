"""Makes a server on loopback seem far away: a proxy for TCP that delays requests and paces what each connection brings.

    python -m benchmarks.suite.distant HOST:PORT [--bytes-per-second 50000000] [--round-trip-seconds 0.02]

It prints its own address. A request waits a round trip before it goes on, a connection's first one two, as for its
handshake. Answers are moved within the kernel (splice(2)), so that the proxy isn't what is measured. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import socket
import threading
import time

_PIECE = 256 * 1024
_CREDIT_SECONDS = 0.01


def carry_requests(near: socket.socket, far: socket.socket, round_trip_seconds: float) -> None:
    """Pass on what a client says, later; it is little, and the next follows the answer."""
    time.sleep(round_trip_seconds)
    with contextlib.suppress(OSError):
        while data := near.recv(_PIECE):
            time.sleep(round_trip_seconds)
            far.sendall(data)
    _end(far)


def carry_answers(far: socket.socket, near: socket.socket, bytes_per_second: float) -> None:
    """Pass on what a server says, no faster than that."""
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIECE)
    due = 0.0
    with contextlib.suppress(OSError):
        while count := os.splice(far.fileno(), into, _PIECE):
            # A moment overslept is made up for, an idle while isn't.
            due = max(due, time.monotonic() - _CREDIT_SECONDS) + count / bytes_per_second
            time.sleep(max(0.0, due - time.monotonic()))
            while count:
                count -= os.splice(out, near.fileno(), count)
    os.close(out)
    os.close(into)
    _end(near)


def _end(target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description="A slow, distant way to a server.")
    parser.add_argument("upstream")
    parser.add_argument("--bytes-per-second", type=float, default=50e6)
    parser.add_argument("--round-trip-seconds", type=float, default=0.02)
    options = parser.parse_args()
    host, _, port = options.upstream.rpartition(":")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        print(f"127.0.0.1:{listening.getsockname()[1]}", flush=True)
        while True:
            near, _ = listening.accept()
            far = socket.create_connection((host, int(port)))
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for work in (
                (carry_requests, (near, far, options.round_trip_seconds)),
                (carry_answers, (far, near, options.bytes_per_second)),
            ):
                threading.Thread(target=work[0], args=work[1], daemon=True).start()


if __name__ == "__main__":
    main()
