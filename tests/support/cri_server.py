"""A CRI server in a thread of the test's process, on a socket of its own."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from imagestore.containerd.service import add_containerd
from imagestore.cri import PullQueue, add_cri
from imagestore.server.calls import CallInterceptor, CallWatch
from imagestore.store import StoreWorkers
from imagestore.util.rpc import MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore import ImageStore
    from imagestore.cri import CriMeter, Readiness

_OPTIONS = [("grpc.max_receive_message_length", MESSAGE_BYTES), ("grpc.max_send_message_length", MESSAGE_BYTES)]


@dataclass
class CriServer:
    """A running server.

    Attributes:
        socket: its path.
        services: the names it registered.
        pulls: its queue; for its loop only, but for looking.
    """

    socket: str
    services: tuple[str, ...]
    pulls: PullQueue

    @property
    def endpoint(self) -> str:
        """As CRI clients write it."""
        return f"unix://{self.socket}"


@dataclass
class _Box:
    """What the server's thread hands over."""

    running: CriServer | None = None
    stop: Callable[[], object] | None = None


@contextlib.contextmanager
def cri_server(
    store: ImageStore,
    *,
    limit: int = 16,
    waiting: int = 1000,
    meter: CriMeter | None = None,
    has_containerd: bool = False,
    readiness: Readiness | None = None,
    for_kubelet: bool = False,
) -> Iterator[CriServer]:
    """Serve a store while the block runs, with containerd's services if wanted, and close it."""
    # A socket's path may have 107 bytes, which pytest's folders can exceed.
    folder = Path(tempfile.mkdtemp(prefix="cri-"))
    workers = StoreWorkers(store)
    ready, box = threading.Event(), _Box()

    async def serve() -> None:
        server = grpc.aio.server(interceptors=[CallInterceptor(CallWatch())], options=_OPTIONS)
        pulls = PullQueue(limit=limit, waiting=waiting, meter=meter)
        services = add_cri(server, workers, pulls, readiness, for_kubelet=for_kubelet)
        if has_containerd:
            add_containerd(server, workers)
        path = str(folder / "cri.sock")
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        box.stop = lambda: loop.call_soon_threadsafe(stop.set)
        box.running = CriServer(path, services, pulls)
        ready.set()
        await stop.wait()
        await server.stop(grace=0)
        await pulls.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="cri-server")
    thread.start()
    try:
        assert ready.wait(60), "the server did not start"
        assert box.running is not None
        yield box.running
    finally:
        if box.stop is not None:
            box.stop()
        thread.join()
        workers.close()
        shutil.rmtree(folder)
