"""Connections as the kernel sees them: which peers take nothing of what waits for them, and an end to those.

Once an answer was handed to gRPC's core, Python can't take it back: the core keeps it until the caller has read it or
the connection ends. So the connection has to end, and the core tells nobody which it is. The kernel does: the socket of
a connection has the name that its listener was bound to, and SIOCOUTQ (unix(7)) says how much its peer hasn't read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
import termios
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DESCRIPTORS: Final = "/proc/self/fd"
_SOCKET: Final = re.compile(r"socket:\[([0-9]+)\]")


class Connections:
    """The connections of this process's unix sockets; none elsewhere than on Linux.

    Args:
        clock: seconds, steady.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._names: set[str] = set()
        #: By inode: how many bytes waited at the last look, and since when none of them was taken.
        self._seen: dict[int, tuple[int, float]] = {}

    def add(self, name: str) -> None:
        """A socket listens.

        Args:
            name: the path it was bound to, wherever it is now.
        """
        self._names.add(name)

    def cut(self, patience_seconds: float) -> int:
        """End the connections whose peers took nothing for so long, and say how many; to be called again and again.

        Args:
            patience_seconds: since the first look that saw the same.
        """
        now, seen, count = self._clock(), dict[int, tuple[int, float]](), 0
        for inode, connection in self._each():
            with connection, contextlib.suppress(OSError):
                unread = _unread_bytes(connection)
                before, since = self._seen.get(inode, (0, now))
                if not unread:
                    continue
                since = since if before == unread else now
                seen[inode] = (unread, since)
                if now - since >= patience_seconds:
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
        self._seen = seen
        return count

    def _each(self) -> Iterator[tuple[int, socket.socket]]:
        """The inode of each connection, and a descriptor of it that is the caller's."""
        try:
            descriptors = [int(name) for name in os.listdir(_DESCRIPTORS)]
        except OSError:
            return
        for descriptor in descriptors:
            # Whatever a descriptor is by the time it is looked at, its copy is then judged by its own name.
            with contextlib.suppress(OSError):
                found = _SOCKET.fullmatch(os.readlink(f"{_DESCRIPTORS}/{descriptor}"))
                if found is None:
                    continue
                connection = socket.socket(fileno=os.dup(descriptor))
                if self._is_ours(connection):
                    yield int(found[1]), connection
                else:
                    connection.close()

    def _is_ours(self, connection: socket.socket) -> bool:
        return (
            connection.family == socket.AF_UNIX
            and connection.getsockname() in self._names
            and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        )


def _unread_bytes(connection: socket.socket) -> int:
    raw = fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))
    return int(struct.unpack("i", raw)[0])
