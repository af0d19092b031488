"""Methods of CRI's that aren't here say what is missing, and leave a line and a number as every call does."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest

from imagestore.cri.image_service import add_cri
from imagestore.cri.pull_queue import PullQueue
from imagestore.server.calls import CallWatch
from imagestore.server.interceptors import UNKNOWN_METHOD, CallInterceptor
from imagestore.store.workers import StoreWorkers
from tests.support.cri_server import CriServer
from tests.support.node import node

NOTHING_RUNS = "this server keeps images, it runs nothing"


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("runtime.v1.RuntimeService/RunPodSandbox", NOTHING_RUNS),
        ("runtime.v1.RuntimeService/Nope", NOTHING_RUNS),
        ("runtime.v1.ImageService/Nope", "this server has runtime.v1.ImageService and"),
        ("runtime.v1alpha2.ImageService/ListImages", "this server has runtime.v1.ImageService and"),
    ],
)
def test_what_is_not_here_says_so(server: CriServer, method: str, says: str) -> None:
    with grpc.insecure_channel(server.endpoint) as channel:
        call: Any = channel.unary_unary(f"/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"")
    status: Any = caught.value
    assert status.code() is grpc.StatusCode.UNIMPLEMENTED
    assert status.details().startswith(f"{method} is not served here: {says}")


def test_what_is_not_here_is_counted_and_logged(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[tuple[str, str]] = []

    class Numbers:
        def began(self, method: str) -> None:
            pass

        def ended(self, method: str, code: str, seconds: float) -> None:
            ended.append((method, code))

    async def scene(socket: Path, workers: StoreWorkers) -> None:
        server = grpc.aio.server(interceptors=[CallInterceptor(CallWatch(Numbers()))])
        add_cri(server, workers, PullQueue())
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            call: Any = channel.unary_unary("/runtime.v1.RuntimeService/RunPodSandbox")
            with pytest.raises(grpc.aio.AioRpcError, match=NOTHING_RUNS):
                await call(b"")
        await server.stop(0)

    with node(tmp_path) as here, caplog.at_level(logging.INFO, logger="imagestore.server.calls"):
        workers = StoreWorkers(here.store)
        asyncio.run(scene(tmp_path_factory.mktemp("s") / "s", workers))
        workers.close()
    assert ended == [(UNKNOWN_METHOD, "UNIMPLEMENTED")]
    (line,) = (vars(record) for record in caplog.records if record.message == "call")
    assert line["error"] == f"runtime.v1.RuntimeService/RunPodSandbox is not served here: {NOTHING_RUNS}"
