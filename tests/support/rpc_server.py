"""containerd's services and a proxy content store on unix sockets, on an event loop of their own in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from imagestore import ImageStore
from imagestore.containerd.service import add_containerd, add_proxy_content
from imagestore.server.calls import CallInterceptor, CallWatch
from imagestore.store import StoreWorkers
from imagestore.util.rpc import MESSAGE_BYTES

OPTIONS = [("grpc.max_send_message_length", MESSAGE_BYTES), ("grpc.max_receive_message_length", MESSAGE_BYTES)]

Add = Callable[[grpc.aio.Server, StoreWorkers], object]


@contextlib.contextmanager
def served(store: ImageStore, add: dict[Path, Add]) -> Iterator[None]:
    """Serve a store, each socket with what its function puts there; the store is closed at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="rpc-server")
    thread.start()
    workers = StoreWorkers(store)

    async def start() -> list[grpc.aio.Server]:
        servers = []
        for socket, adds in add.items():
            server = grpc.aio.server(interceptors=[CallInterceptor(CallWatch())], options=OPTIONS)
            adds(server, workers)
            server.add_insecure_port(f"unix://{socket}")
            await server.start()
            servers.append(server)
        return servers

    async def stop(servers: list[grpc.aio.Server]) -> None:
        for server in servers:
            await server.stop(grace=0)
        # A collection may still be under way.
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()

    servers = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(stop(servers), loop).result(120)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        workers.close()


@contextlib.contextmanager
def containerd_face(store: ImageStore, socket: Path) -> Iterator[grpc.Channel]:
    """containerd's services on a socket, and a channel to it."""
    with served(store, {socket: add_containerd}), channel(socket) as opened:
        yield opened


@contextlib.contextmanager
def proxy_face(store: ImageStore, socket: Path, *, name: str = "containerd") -> Iterator[grpc.Channel]:
    """A proxy content store on a socket, and a channel to it."""
    with (
        served(store, {socket: lambda server, workers: add_proxy_content(server, workers, name=name)}),
        channel(socket) as opened,
    ):
        yield opened


@contextlib.contextmanager
def channel(socket: Path) -> Iterator[grpc.Channel]:
    """A client's connection."""
    with grpc.insecure_channel(f"unix://{socket}", options=OPTIONS) as opened:
        yield opened
