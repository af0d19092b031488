"""Connections whose peer has stopped reading, found by what the kernel still holds for it, and cut.

gRPC doesn't say which connection a call came by, and all peers of a unix socket look alike. But the connections are
this process's descriptors: the accepted ones carry the name their listener was bound to, and the kernel tells how many
bytes sent on each were not read yet (``SIOCOUTQ``, unix(7)). When that number hasn't moved for a second, the peer isn't
reading. A peer that reads its socket but grants no window isn't found this way; its answers stay within the limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import stat
import struct
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

log = logging.getLogger(__name__)

STUCK_SECONDS: Final = 1.0
# TIOCOUTQ by its other name; bytes not read by the peer.
_SIOCOUTQ: Final = 0x5411


class DeafConnections:
    """Finds and cuts them.

    Args:
        names: what listeners were bound to.
        clock: seconds, steady.
    """

    def __init__(self, names: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._names = names
        self._clock = clock
        # Unread bytes by connection (the inode of its socket), and since when they are these.
        self._seen: dict[int, tuple[int, float]] = {}
        self._looked_at = clock()

    def cut(self) -> int:
        """Look at every connection; cut those that were stuck since an earlier look. Say how many."""
        now, seen, cut = self._clock(), {}, 0
        if now - self._looked_at > STUCK_SECONDS:
            # The last look belongs to another time of need: the same number now says nothing about the time between.
            self._seen = {}
        self._looked_at = now
        for entry in os.listdir("/proc/self/fd"):
            # A descriptor may be closed, and its number used again, while we look: a copy of it stays what it is.
            with contextlib.suppress(OSError), _copy(int(entry)) as connection:
                unread = self._unread(connection)
                if not unread:
                    continue
                inode = os.fstat(connection.fileno()).st_ino
                before, since = self._seen.get(inode, (0, now))
                seen[inode] = (unread, since if before == unread else now)
                if now - seen[inode][1] >= STUCK_SECONDS:
                    connection.shutdown(socket.SHUT_RDWR)
                    cut += 1
        self._seen = seen
        if cut:
            log.warning("connections cut: their callers don't read", extra={"connections": cut})
        return cut

    def _unread(self, connection: socket.socket) -> int:
        if connection.family != socket.AF_UNIX or connection.type != socket.SOCK_STREAM:
            return 0
        if connection.getsockname() not in self._names:
            return 0
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return 0
        (unread,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), _SIOCOUTQ, bytes(4)))
        return int(unread)


def _copy(descriptor: int) -> socket.socket:
    """A socket of our own for a descriptor.

    Raises:
        OSError: it is closed, or no socket.
    """
    copied = os.dup(descriptor)
    try:
        if not stat.S_ISSOCK(os.fstat(copied).st_mode):
            raise OSError(f"descriptor {descriptor} is no socket")
        return socket.socket(fileno=copied)
    except BaseException:
        os.close(copied)
        raise
