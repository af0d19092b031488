"""Health: who asks and who watches hear what is served, and that it no longer is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from imagestore.rpc.answers import AnswerCache
from imagestore.server.calls import CallWatch
from imagestore.server.health import Health
from imagestore.server.memory import AnswerMemory
from imagestore.server.numbers import NoNumbers
from imagestore.server.observed import ObservedServer
from imagestore.server.unread import Unread

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
# The package's types don't know List.
messages: Any = health_pb2

Scene = Callable[[Any, Health, CallWatch], Awaitable[None]]


def play(folder: Path, scene: Scene) -> None:
    """A server with the service "a.A", as the process has it."""

    async def running() -> None:
        watch = CallWatch(NoNumbers())
        memory = AnswerMemory(AnswerCache(), lambda: None, ())
        server, health = ObservedServer(grpc.aio.server(), watch, Unread(lambda: 0), memory), Health(["a.A"])
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        server.add_insecure_port(f"unix:{folder}/s")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{folder}/s") as channel:
            await asyncio.wait_for(scene(health_pb2_grpc.HealthStub(channel), health, watch), 20)
        await server.stop(0)

    asyncio.run(running())


def request(name: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=name)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: the kernel's limit for sockets is 107 bytes."""
    return tmp_path_factory.mktemp("s")


def test_who_asks_hears_whether_it_is_served(folder: Path) -> None:
    async def scene(stub: Any, health: Health, _: CallWatch) -> None:
        for name in ("", "a.A"):
            assert (await stub.Check(request(name))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError, match=r"service 'b\.B' is not here") as caught:
            await stub.Check(request("b.B"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        health.stop()
        assert (await stub.Check(request("a.A"))).status == NOT_SERVING

    play(folder, scene)


@pytest.mark.skipif(not hasattr(messages, "HealthListRequest"), reason="this version of the package has no List")
def test_a_list_has_every_service(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stub: Any, health: Health, _: CallWatch) -> None:
        for status in (SERVING, NOT_SERVING):
            found = await stub.List(messages.HealthListRequest())
            assert {name: each.status for name, each in found.statuses.items()} == {"": status, "a.A": status}
            health.stop()

    play(folder, scene)
    # gRPC's poller may still come back to the loop of an earlier test, which asyncio tells.
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING and each.name != "asyncio"]


def test_who_watches_hears_of_the_end_and_is_let_go(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard: dict[str, list[int]] = {"": [], "a.A": [], "b.B": []}

    async def scene(stub: Any, health: Health, watch: CallWatch) -> None:
        async def listen(name: str) -> grpc.StatusCode:
            call = stub.Watch(request(name))
            async for each in call:
                heard[name].append(each.status)
            return await call.code()  # type: ignore[no-any-return]

        watchers = [asyncio.create_task(listen(name)) for name in heard]
        while not all(heard.values()):
            await asyncio.sleep(0.01)
        assert watch.in_progress == len(heard)
        # Nothing comes between, as when the process drains.
        health.stop()
        watch.stop_endless()
        assert set(await asyncio.gather(*watchers)) == {grpc.StatusCode.OK}

    play(folder, scene)
    assert heard == {"": [SERVING, NOT_SERVING], "a.A": [SERVING, NOT_SERVING], "b.B": [SERVICE_UNKNOWN]}
    # gRPC's poller may still come back to the loop of an earlier test, which asyncio tells.
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING and each.name != "asyncio"]
