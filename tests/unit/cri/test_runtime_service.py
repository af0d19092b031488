"""What the image server answers where clients expect a runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from imagestore import config, platforms
from imagestore.cri.image_service import add_cri
from imagestore.cri.pull_queue import PullQueue
from imagestore.cri.runtime_service import RuntimeServicer, uses_systemd
from imagestore.protos.cri import api_pb2 as cri
from imagestore.server.calls import UNKNOWN_METHOD, CallInterceptor, CallWatch
from imagestore.store import StoreWorkers
from tests.support.cri_server import CriServer
from tests.support.node import CONFIG, node

RUNTIME = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
# The context of a call that asks it for nothing.
NOBODY: Any = None


def answer(
    root: Path, ask: Callable[[RuntimeServicer], Awaitable[Any]], *, host: str = "linux/amd64", text: str = CONFIG
) -> Any:
    """What a server on a host answers."""
    with node(root, {}, host=platforms.parse(host), text=text) as here:
        workers = StoreWorkers(here.store)

        async def run() -> Any:
            return await ask(RuntimeServicer(workers))

        try:
            return asyncio.run(run())
        finally:
            workers.close()


@pytest.mark.parametrize(("option", "driver"), [("true", cri.SYSTEMD), ("false", cri.CGROUPFS)])
def test_on_linux_the_kubelet_hears_the_cgroup_driver(tmp_path: Path, option: str, driver: int) -> None:
    text = f"{RUNTIME}options = {{ SystemdCgroup = {option} }}"
    found = answer(tmp_path, lambda runtime: runtime.RuntimeConfig(cri.RuntimeConfigRequest(), NOBODY), text=text)
    assert found.HasField("linux")
    assert found.linux.cgroup_driver == driver


def test_on_windows_there_is_no_cgroup_driver_to_hear_of(tmp_path: Path) -> None:
    found = answer(
        tmp_path,
        lambda runtime: runtime.RuntimeConfig(cri.RuntimeConfigRequest(), NOBODY),
        host="windows(10.0.20348)/amd64",
    )
    assert found == cri.RuntimeConfigResponse()


def test_nothing_runs_here_and_that_is_no_error(tmp_path: Path) -> None:
    async def lists(runtime: RuntimeServicer) -> list[object]:
        return [
            await runtime.ListPodSandbox(cri.ListPodSandboxRequest(), NOBODY),
            await runtime.ListContainers(cri.ListContainersRequest(), NOBODY),
            await runtime.ListContainerStats(cri.ListContainerStatsRequest(), NOBODY),
            await runtime.ListPodSandboxStats(cri.ListPodSandboxStatsRequest(), NOBODY),
        ]

    assert answer(tmp_path, lists) == [
        cri.ListPodSandboxResponse(),
        cri.ListContainersResponse(),
        cri.ListContainerStatsResponse(),
        cri.ListPodSandboxStatsResponse(),
    ]


@pytest.mark.parametrize(
    ("options", "is_systemd_host", "expected"),
    [
        ("", True, True),
        ("", False, False),
        ("options = { SystemdCgroup = true }", False, True),
        ("options = { SystemdCgroup = false }", True, False),
    ],
)
def test_the_cgroup_driver_is_the_default_handlers_or_the_hosts(
    options: str, is_systemd_host: bool, expected: bool
) -> None:
    loaded = config.loads(f"{RUNTIME}{options}\n", filename="config.toml", host=platforms.parse("linux/amd64"))
    assert uses_systemd(loaded, is_systemd_host=is_systemd_host) is expected


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
