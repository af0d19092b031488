"""Makes a server on loopback seem far away: a proxy for TCP that delays, and paces what each connection brings.

    python -m benchmarks.suite.distant HOST:PORT [--bytes-per-second 50000000] [--round-trip-seconds 0.02]

It prints its own address. A connection's first bytes wait a round trip longer, as for its handshake.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import threading
import time
from collections import deque

_PIECE = 128 * 1024
#: Bytes on their way in one direction of one connection, as a sender's window bounds them.
_WINDOW = 4 << 20


class Pump:
    """One direction of one connection.

    Args:
        source, target: sockets.
        delay_seconds: from one to the other.
        first_seconds: how much longer the first bytes take.
        bytes_per_second: pace; 0 for none.
    """

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        *,
        delay_seconds: float,
        first_seconds: float = 0.0,
        bytes_per_second: float = 0.0,
    ) -> None:
        self._source, self._target = source, target
        self._delay = delay_seconds
        self._rate = bytes_per_second
        self._due = time.monotonic() + first_seconds
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._changed = threading.Condition()
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        piece = b"?"
        while piece:
            try:
                piece = self._source.recv(_PIECE)
            except OSError:
                piece = b""
            with self._changed:
                while self._size > _WINDOW:
                    self._changed.wait()
                self._due = max(self._due, time.monotonic() + self._delay)
                if self._rate:
                    self._due += len(piece) / self._rate
                self._waiting.append((self._due, piece))
                self._size += len(piece)
                self._changed.notify_all()

    def _write(self) -> None:
        piece = b"?"
        while piece:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                due, piece = self._waiting.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            with contextlib.suppress(OSError):
                if piece:
                    self._target.sendall(piece)
                else:
                    self._target.shutdown(socket.SHUT_WR)
            with self._changed:
                self._size -= len(piece)
                self._changed.notify_all()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description="A slow, distant way to a server.")
    parser.add_argument("upstream")
    parser.add_argument("--bytes-per-second", type=float, default=50e6)
    parser.add_argument("--round-trip-seconds", type=float, default=0.02)
    options = parser.parse_args()
    host, _, port = options.upstream.rpartition(":")
    delay = options.round_trip_seconds / 2
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        print(f"127.0.0.1:{listening.getsockname()[1]}", flush=True)
        while True:
            near, _ = listening.accept()
            far = socket.create_connection((host, int(port)))
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Pump(near, far, delay_seconds=delay, first_seconds=3 * delay)
            Pump(far, near, delay_seconds=delay, bytes_per_second=options.bytes_per_second)


if __name__ == "__main__":
    main()
