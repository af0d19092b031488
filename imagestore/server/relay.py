"""Connections that arrive at a socket we were given, handed on to the server's own.

gRPC's Python interface can't take over a listening socket. So the server listens at a private one as well, and whoever
connects to the given one is joined to it: bytes pass both ways untouched, and a side that doesn't read stops the other
(each direction holds at most one buffer). It costs some 0.1 ms a call; docs/operating.md has the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Final

log = logging.getLogger(__name__)

_BUFFER_BYTES: Final = 64 * 1024
# As many as wait in the kernel's queue; more are accepted in the next turn of the loop.
_PAUSE_SECONDS: Final = 0.1


class Relay:
    """Joins the connections of one listening socket to a server.

    Args:
        listener: bound and listening; closed by close().
        target: path of the server's own socket.
        most: connections at one time; more wait in the kernel's queue.
    """

    def __init__(self, listener: socket.socket, target: str, most: int) -> None:
        self._listener = listener
        self._target = target
        self._places = asyncio.Semaphore(most)
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to accept; needs a running loop."""
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                client, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                # Out of descriptors: whoever waits in the queue stays there until some are free again.
                self._places.release()
                log.warning("accepting failed", extra={"reason": error.strerror})
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            task = asyncio.create_task(self._join(client))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.release()

    async def _join(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError), client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            client.setblocking(False)
            server.setblocking(False)
            await loop.sock_connect(server, self._target)
            ways = [asyncio.create_task(_pass_on(*pair)) for pair in ((client, server), (server, client))]
            try:
                await asyncio.gather(*ways)
            finally:
                for way in ways:
                    way.cancel()
                # The loop lets go of the descriptors first: their numbers may be another connection's a moment later.
                await asyncio.gather(*ways, return_exceptions=True)

    async def stop_accepting(self) -> None:
        """Leave new connections in the kernel's queue, for our successor."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None

    async def close(self) -> None:
        """Stop accepting and cut what is joined."""
        await self.stop_accepting()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()


async def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """One direction, until its end, which is passed on too."""
    loop = asyncio.get_running_loop()
    buffer = bytearray(_BUFFER_BYTES)
    view = memoryview(buffer)
    while count := await loop.sock_recv_into(source, buffer):
        await loop.sock_sendall(sink, view[:count])
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
