"""Connections whose peer has stopped reading, found by what the kernel still holds for it, and cut.

gRPC doesn't say which connection a call came by, and all peers of a unix socket look alike. But the kernel tells how
many bytes sent on each connection were not read yet (``SIOCOUTQ``, unix(7)). When that number hasn't moved for a
second, the peer isn't reading. A peer that reads its socket but grants no window isn't found this way; its answers stay
within the limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Final

from imagestore.server.connections import accepted

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
        now, cut = self._clock(), 0
        seen: dict[int, tuple[int, float]] = {}
        if now - self._looked_at > STUCK_SECONDS:
            # The last look belongs to another time of need: the same number now says nothing about the time between.
            self._seen = {}
        self._looked_at = now
        for connection in accepted(self._names):
            with contextlib.suppress(OSError):
                (unread,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), _SIOCOUTQ, bytes(4)))
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
