"""What the image server answers where clients expect a runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from imagestore import platforms
from imagestore.cri._proto import api_pb2 as cri
from imagestore.cri.runtime_service import RuntimeServicer
from imagestore.store.workers import StoreWorkers
from tests.support.node import CONFIG, node

RUNC = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
options = { SystemdCgroup = %s }
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
    found = answer(
        tmp_path, lambda runtime: runtime.RuntimeConfig(cri.RuntimeConfigRequest(), NOBODY), text=RUNC % option
    )
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
