"""A proxy between a client and a server that cuts its connections or stops forwarding, when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

_PIECE_BYTES: Final = 1 << 16


class TcpProxy:
    """Forwards connections to a port on loopback.

    Attributes:
        port: where it listens, on 127.0.0.1; the same while it lives.
        opened: how many connections clients have opened.
    """

    def __init__(
        self, target: int, loop: asyncio.AbstractEventLoop, heard: Callable[[bytes], None] | None = None
    ) -> None:
        self.port = 0
        self._heard = heard
        self.opened = 0
        self._target = target
        self._loop = loop
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._refuses = False

    def cut(self) -> None:
        """Reset all connections; new ones are forwarded."""
        self._call(self._cut)

    def refuse(self) -> None:
        """Reset all connections, and close new ones at once, until :meth:`go_on`."""

        def change() -> None:
            self._refuses = True
            self._cut()

        self._call(change)

    def stall(self) -> None:
        """Stop forwarding: connections stay open, new ones are accepted, and no byte arrives."""
        self._call(self._goes_on.clear)

    def go_on(self) -> None:
        """Forward again, also what was sent while nothing was forwarded."""

        def change() -> None:
            self._refuses = False
            self._goes_on.set()

        self._call(change)

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _call(self, change: Callable[[], None]) -> None:
        async def on_loop() -> None:
            change()

        asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(60)

    async def listen(self) -> None:
        """Start, on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Reset all connections and listen no more."""
        assert self._server is not None
        self._server.close()
        self._goes_on.set()
        self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self._writers.add(writer)
        try:
            if self._refuses:
                return
            await self._goes_on.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(far_writer)
            try:
                await asyncio.gather(self._forward(reader, far_writer, self._heard), self._forward(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except OSError:
            # The server doesn't listen, or a side has reset the connection: the other side sees the same.
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: Callable[[bytes], None] | None = None
    ) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            if heard is not None:
                heard(piece)
            await self._goes_on.wait()
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


@contextlib.contextmanager
def tcp_proxy(target: int, heard: Callable[[bytes], None] | None = None) -> Iterator[TcpProxy]:
    """Run a proxy in a thread.

    Args:
        target: the server's port on 127.0.0.1.
        heard: gets what clients send, in pieces, in the proxy's thread.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        proxy = TcpProxy(target, loop, heard)
        asyncio.run_coroutine_threadsafe(proxy.listen(), loop).result(60)
        try:
            yield proxy
        finally:
            asyncio.run_coroutine_threadsafe(proxy.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
