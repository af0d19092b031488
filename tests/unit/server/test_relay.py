"""A given socket's connections reach the server byte for byte, and a side that doesn't read holds back only its own."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagestore.server import relay as module
from imagestore.server.relay import Relay


class Scene:
    """An echo server behind a relay; it reads only while it may."""

    def __init__(self, folder: Path, most: int) -> None:
        self.outer, inner = str(folder / "o"), str(folder / "i")
        self.inner = inner
        self.received = 0
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.outer)
        listener.listen()
        listener.setblocking(False)
        self.listener = listener
        self.relay = Relay(listener, inner, most)

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.received += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Scene]:
        server = await asyncio.start_unix_server(self.echo, self.inner)
        self.relay.start()
        yield self
        await self.relay.close()
        server.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self.outer)


def play(folder: Path, scene: Callable[[Scene], Awaitable[None]], most: int = 100) -> None:
    async def run() -> None:
        async with Scene(folder, most).running() as running:
            await asyncio.wait_for(scene(running), 20)

    asyncio.run(run())


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r")


async def exchange(running: Scene, data: bytes) -> bytes:
    reader, writer = await running.connect()
    writer.write(data)
    writer.write_eof()
    answer = await reader.read(-1)
    writer.close()
    return answer


def test_bytes_and_ends_pass_both_ways(folder: Path) -> None:
    data = os.urandom(3_000_000)

    async def scene(running: Scene) -> None:
        assert await asyncio.gather(*(exchange(running, data[index:]) for index in range(3))) == [
            data[index:] for index in range(3)
        ]

    play(folder, scene)


def test_a_reader_that_stops_holds_back_its_writer_only(folder: Path) -> None:
    async def scene(running: Scene) -> None:
        _, writer = await running.connect()
        writer.write(bytes(50_000_000))
        for _ in range(100):
            before = running.received
            await asyncio.sleep(0.05)
            if running.received == before:
                break
        # What the kernel and one buffer for each way hold, and asyncio's own in this test.
        assert running.received < 10_000_000
        assert await exchange(running, b"others go on") == b"others go on"
        writer.transport.abort()

    play(folder, scene)


def test_connections_above_the_limit_wait_for_a_place(folder: Path) -> None:
    async def scene(running: Scene) -> None:
        _, first = await running.connect()
        waiting = asyncio.create_task(exchange(running, b"hello"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        first.close()
        assert await waiting == b"hello"

    play(folder, scene, most=1)


def test_without_a_server_the_connection_ends(folder: Path) -> None:
    async def scene(running: Scene) -> None:
        os.unlink(running.inner)
        reader, writer = await running.connect()
        assert await reader.read() == b""
        writer.close()

    play(folder, scene)


def test_after_the_last_accept_callers_wait_for_our_successor(folder: Path) -> None:
    async def scene(running: Scene) -> None:
        assert await exchange(running, b"a") == b"a"
        await running.relay.stop_accepting()
        waiting = asyncio.create_task(exchange(running, b"b"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        running.relay.start()
        assert await waiting == b"b"

    play(folder, scene)


def test_without_descriptors_the_connection_ends_and_nothing_is_said_of_a_bug(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def scene(running: Scene) -> None:
        names = {**vars(socket), "socket": refused}
        monkeypatch.setattr(module, "socket", SimpleNamespace(**names))
        reader, writer = await running.connect()
        assert await reader.read() == b""
        writer.close()

    play(folder, scene)
    gc.collect()
    assert caplog.records == []
