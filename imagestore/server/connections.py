"""The server's accepted connections, which gRPC keeps to itself: found among this process's descriptors.

Those of unix sockets carry the name their listener was bound to.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


def accepted(names: Collection[str]) -> Iterator[socket.socket]:
    """Every accepted connection, as a copy that is closed when the next is asked for.

    Args:
        names: what listeners were bound to.
    """
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), _copy(int(entry)) as connection:
            if _is_accepted(connection, names):
                yield connection


def cut_all(names: Collection[str]) -> None:
    """End every accepted connection.

    Args:
        names: what listeners were bound to.
    """
    for connection in accepted(names):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _is_accepted(connection: socket.socket, names: Collection[str]) -> bool:
    if connection.family != socket.AF_UNIX or connection.type != socket.SOCK_STREAM:
        return False
    if connection.getsockname() not in names:
        return False
    return not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def _copy(descriptor: int) -> socket.socket:
    """A socket of our own for a descriptor, which may be closed, and its number used again, while we look.

    Nothing but sockets is copied: to close any descriptor of a file drops all locks that this process has on it (POSIX
    locks, fcntl(2)), and SQLite's database is one.

    Raises:
        OSError: it is closed, or no socket.
    """
    if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{descriptor}").st_mode):
        raise OSError(f"descriptor {descriptor} is no socket")
    copied = os.dup(descriptor)
    if not stat.S_ISSOCK(os.fstat(copied).st_mode):
        # Used again since that look, perhaps by the database: rather one descriptor more.
        raise OSError(f"descriptor {descriptor} is no socket")
    try:
        return socket.socket(fileno=copied)
    except BaseException:
        os.close(copied)
        raise
