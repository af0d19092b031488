"""Every call is followed to its end: named, counted, logged without its contents."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import json
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from imagestore.errors import StoreBusyError
from imagestore.server.calls import Call, CallInterceptor, CallWatch, ServicerContext
from tests.support.collector import without_collector
from tests.support.patience import until_in_loop

SECRET = "hunter2-canary"


class Numbers:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.began_count = 0
        self.ended_calls: list[tuple[str, str]] = []

    def began(self, method: str) -> None:
        self.began_count += 1

    def ended(self, method: str, code: str, seconds: float) -> None:
        assert seconds >= 0
        self.ended_calls.append((method, code))


class Load:
    """What a call holds."""


class Service:
    """Does what the name of the method says."""

    def __init__(self) -> None:
        self.computed = 0
        self.closed = 0
        self.started = asyncio.Event()
        self.loads: list[weakref.ref[Load]] = []

    def load(self) -> Load:
        load = Load()
        self.loads.append(weakref.ref(load))
        return load

    async def Echo(self, request: bytes, context: ServicerContext) -> bytes:
        self.computed += 1
        return request

    async def Slow(self, request: bytes, context: ServicerContext) -> bytes:
        self.computed += 1
        await asyncio.sleep(0.1)
        return request

    async def Bug(self, request: bytes, context: ServicerContext) -> bytes:
        raise KeyError(SECRET)

    async def Busy(self, request: bytes, context: ServicerContext) -> bytes:
        _load = self.load()
        raise StoreBusyError("image a: expected a free store, found it busy", hint="try again")

    async def Abort(self, request: bytes, context: ServicerContext) -> bytes:
        _load = self.load()
        await context.abort(grpc.StatusCode.NOT_FOUND, "image a: is not there")

    async def RemoveImage(self, request: bytes, context: ServicerContext) -> bytes:
        return b""

    async def Wait(self, request: bytes, context: ServicerContext) -> bytes:
        self.started.set()
        await asyncio.Event().wait()
        return b""

    async def StreamNumbers(self, request: bytes, context: ServicerContext) -> AsyncIterator[bytes]:
        try:
            for index in range(int(request)):
                yield str(index).encode()
        finally:
            self.closed += 1

    async def StreamBusy(self, request: bytes, context: ServicerContext) -> AsyncIterator[bytes]:
        _load = self.load()
        yield b"first"
        raise StoreBusyError("answers: expected callers to read them")

    async def StreamLarge(self, request: bytes, context: ServicerContext) -> AsyncIterator[bytes]:
        while True:
            yield bytes(int(request))

    async def ServerReflectionInfo(self, request: bytes, context: ServicerContext) -> None:
        await context.write(b"first")
        await asyncio.Event().wait()

    async def Sum(self, requests: AsyncIterator[bytes], context: ServicerContext) -> bytes:
        return str(sum([int(each) async for each in requests])).encode()

    async def Double(self, requests: AsyncIterator[bytes], context: ServicerContext) -> AsyncIterator[bytes]:
        async for each in requests:
            yield each * 2

    def Refused(self, request: bytes, context: ServicerContext) -> bytes:
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError


def parsed(raw: bytes) -> bytes:
    if raw == b"garbage":
        raise ValueError(SECRET)
    return raw


def register(server: grpc.aio.Server, service: Service) -> None:
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(getattr(service, name), parsed, bytes)
        for name in ("Echo", "Slow", "Bug", "Busy", "Abort", "RemoveImage", "Wait", "Refused")
    }
    for name in ("StreamNumbers", "StreamBusy", "StreamLarge", "ServerReflectionInfo"):
        handlers[name] = grpc.unary_stream_rpc_method_handler(getattr(service, name), bytes, bytes)
    handlers["Sum"] = grpc.stream_unary_rpc_method_handler(service.Sum, parsed, bytes)
    handlers["Double"] = grpc.stream_stream_rpc_method_handler(service.Double, parsed, bytes)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.T", handlers)])


class Bench:
    """A running server and a channel to it."""

    def __init__(self) -> None:
        self.numbers = Numbers()
        self.watch = CallWatch(self.numbers)
        self.service = Service()
        self.channel: Any

    @asynccontextmanager
    async def running(self, folder: Path) -> AsyncIterator[Bench]:
        server = grpc.aio.server(interceptors=[CallInterceptor(self.watch)])
        register(server, self.service)
        server.add_insecure_port(f"unix:{folder}/s")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{folder}/s") as self.channel:
            yield self
        await server.stop(0)

    async def ask(self, method: str, request: bytes = b"", **more: Any) -> bytes:
        return bytes(await self.channel.unary_unary(f"/t.T/{method}")(request, **more))

    async def settled(self, count: int) -> None:
        """Handlers end a moment after their callers have the answer."""
        await until_in_loop(lambda: len(self.numbers.ended_calls) >= count, f"{count} calls have ended")


Scene = Callable[[Bench], Awaitable[None]]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("o")


def play(folder: Path, scene: Scene) -> Bench:
    async def run() -> Bench:
        async with Bench().running(folder) as bench:
            await scene(bench)
            return bench

    async def bounded() -> Bench:
        return await asyncio.wait_for(run(), 60)

    return asyncio.run(bounded())


def test_every_kind_of_call_is_counted_with_its_code(folder: Path) -> None:
    async def scene(bench: Bench) -> None:
        assert await bench.ask("Echo", b"hi") == b"hi"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.ask("Abort")
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "image a: is not there")
        stream = bench.channel.unary_stream("/t.T/StreamNumbers")(b"3")
        assert [each async for each in stream] == [b"0", b"1", b"2"]
        assert await bench.channel.stream_unary("/t.T/Sum")(iter([b"1", b"2"])) == b"3"
        await bench.settled(4)

    bench = play(folder, scene)
    assert bench.numbers.ended_calls == [
        ("/t.T/Echo", "OK"),
        ("/t.T/Abort", "NOT_FOUND"),
        ("/t.T/StreamNumbers", "OK"),
        ("/t.T/Sum", "OK"),
    ]
    assert bench.watch.in_progress == 0


def test_request_is_named_in_the_answer_and_in_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "imagestore.server")

    async def scene(bench: Bench) -> None:
        call = bench.channel.unary_unary("/t.T/RemoveImage")(
            b"", metadata=(("x-request-id", "mine"), ("authorization", SECRET))
        )
        await call
        assert ("x-request-id", "mine") in [tuple(each) for each in await call.trailing_metadata()]

    bench = play(folder, scene)
    (record,) = [each for each in caplog.records if each.message == "call"]
    assert (record.__dict__["method"], record.__dict__["code"]) == ("/t.T/RemoveImage", "OK")
    assert record.levelno == logging.INFO
    assert bench.watch.removals == 1
    assert SECRET not in str([vars(each) for each in caplog.records])


def test_reads_are_logged_at_debug_only(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "imagestore.server")

    async def scene(bench: Bench) -> None:
        stream = bench.channel.unary_stream("/t.T/StreamNumbers")(b"1")
        assert [each async for each in stream] == [b"0"]

    play(folder, scene)
    assert [each.levelno for each in caplog.records if each.message == "call"] == [logging.DEBUG]


def test_a_bug_reports_only_the_request_id_to_the_caller(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(bench: Bench) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.ask("Bug", metadata=(("x-request-id", "r-1"),))
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert caught.value.details() == "internal error; the server's log has it under request r-1"

    bench = play(folder, scene)
    assert bench.numbers.ended_calls == [("/t.T/Bug", "INTERNAL")]
    assert any(record.exc_info and record.levelno == logging.ERROR for record in caplog.records)


def test_our_errors_keep_their_code_and_text(folder: Path) -> None:
    async def scene(bench: Bench) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.ask("Busy")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "image a: expected a free store, found it busy (try again)"

    assert play(folder, scene).numbers.ended_calls == [("/t.T/Busy", "UNAVAILABLE")]


def test_what_a_refused_call_held_is_free_without_the_garbage_collector(folder: Path) -> None:
    # An idle server makes too few objects for a whole collection: what only that frees would stay for hours.
    async def scene(bench: Bench) -> None:
        for method in ("Busy", "Abort"):
            with pytest.raises(grpc.aio.AioRpcError):
                await bench.ask(method)
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in bench.channel.unary_stream("/t.T/StreamBusy")(b""):
                pass
        await bench.settled(3)
        assert len(bench.service.loads) == 3
        await until_in_loop(lambda: not any(load() for load in bench.service.loads), "nothing is held any more")

    with without_collector():
        play(folder, scene)


def test_of_a_stream_of_requests_nothing_is_left_to_the_garbage_collector(folder: Path) -> None:
    def receivers() -> int:
        # gRPC's, which hold the last message and themselves.
        return sum(type(each).__name__ == "_MessageReceiver" for each in gc.get_objects())

    async def scene(bench: Bench) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await bench.channel.stream_unary("/t.T/Sum")(iter([b"1", b"garbage", b"2"]))
        async for _ in bench.channel.stream_stream("/t.T/Double")(iter([b"1", b"2"])):
            pass
        await bench.settled(2)
        await until_in_loop(lambda: receivers() == 0, "nothing is held any more")

    with without_collector():
        play(folder, scene)


def test_deadline_and_cancellation_have_different_codes(folder: Path) -> None:
    async def scene(bench: Bench) -> None:
        # On a busy machine the server may hear of a call when its time is nearly over, or not at all.
        for _ in range(100):
            with pytest.raises(grpc.aio.AioRpcError):
                await bench.ask("Wait", timeout=0.1)
            if ("/t.T/Wait", "DEADLINE_EXCEEDED") in bench.numbers.ended_calls:
                break
        await until_in_loop(lambda: not bench.watch.in_progress, "the calls have ended")
        late = len(bench.numbers.ended_calls)
        bench.service.started.clear()
        call = bench.channel.unary_unary("/t.T/Wait")(b"")
        await bench.service.started.wait()
        call.cancel()
        await bench.settled(late + 1)
        codes = [code for _, code in bench.numbers.ended_calls]
        assert "DEADLINE_EXCEEDED" in codes[:late]
        assert codes[late:] == ["CANCELLED"]

    play(folder, scene)


def test_stream_whose_reader_leaves_is_closed_at_once(folder: Path) -> None:
    async def scene(bench: Bench) -> None:
        stream = bench.channel.unary_stream("/t.T/StreamNumbers")(b"100000000")
        async for _ in stream:
            break
        stream.cancel()
        await bench.settled(1)
        assert bench.service.closed == 1

    assert play(folder, scene).numbers.ended_calls == [("/t.T/StreamNumbers", "CANCELLED")]


@pytest.mark.parametrize("size", [b"1000000", b"10000"])
@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
def test_a_caller_that_leaves_a_waiting_answer_is_no_bug(
    folder: Path, caplog: pytest.LogCaptureFixture, size: bytes, how: str
) -> None:
    async def scene(bench: Bench) -> None:
        channel: Any = grpc.aio.insecure_channel(f"unix:{folder}/s", options=[("grpc.use_local_subchannel_pool", 1)])
        stream: Any = channel.unary_stream("/t.T/StreamLarge")(size, timeout=0.5 if how == "deadline" else None)
        with contextlib.suppress(grpc.aio.AioRpcError):  # the deadline, on a busy machine
            await stream.read()
        await asyncio.sleep(0.3)  # nothing more is taken: a write waits
        if how == "cancel":
            stream.cancel()
        elif how == "close":
            await channel.close()
        await bench.settled(1)
        await channel.close()

    ((_, code),) = play(folder, scene).numbers.ended_calls
    assert code in {"CANCELLED", "DEADLINE_EXCEEDED" if how == "deadline" else "CANCELLED"}
    # gRPC's poller may still come back to the loop of an earlier test, which asyncio tells.
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING and each.name != "asyncio"]


def test_while_the_server_stops_new_calls_are_turned_away(folder: Path) -> None:
    async def scene(bench: Bench) -> None:
        assert await bench.ask("Echo", b"1") == b"1"
        waiting = bench.channel.unary_unary("/t.T/Slow")(b"slow")
        await until_in_loop(lambda: bench.service.computed == 2, "the slow call has begun")
        bench.watch.is_stopping = True
        with pytest.raises(grpc.aio.AioRpcError, match="the server is being stopped") as caught:
            await bench.ask("Echo", b"1")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await waiting == b"slow"

    play(folder, scene)


def test_all_calls_end_together_and_a_drain_waits_for_no_endless_one(folder: Path) -> None:
    async def scene(bench: Bench) -> None:
        watching = bench.channel.unary_stream("/t.T/ServerReflectionInfo")(b"")
        assert await watching.read() == b"first"
        assert bench.watch.in_progress == 0
        waiting = bench.channel.unary_unary("/t.T/Wait")(b"")
        await bench.service.started.wait()
        assert bench.watch.in_progress == 1
        bench.watch.stop_all()
        await bench.settled(2)
        with pytest.raises(grpc.aio.AioRpcError, match="the server is being stopped") as caught:
            await waiting
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    assert sorted(method for method, _ in play(folder, scene).numbers.ended_calls) == [
        "/t.T/ServerReflectionInfo",
        "/t.T/Wait",
    ]


def test_unknown_and_refused_methods_are_unimplemented(folder: Path) -> None:
    async def scene(bench: Bench) -> None:
        for method in ("Refused", "Nothing"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await bench.ask(method)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    play(folder, scene)


def test_request_that_is_no_message_is_the_callers_fault(folder: Path) -> None:
    async def scene(bench: Bench) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.ask("Echo", b"garbage")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == "/t.T/Echo: the request is no message of its type"

    assert play(folder, scene).service.computed == 0


@pytest.mark.parametrize(("method", "kind"), [("Sum", "stream_unary"), ("Double", "stream_stream")])
def test_stream_of_requests_with_one_that_is_no_message_is_the_callers_fault(
    folder: Path, method: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(bench: Bench) -> None:
        call = getattr(bench.channel, kind)(f"/t.T/{method}")(iter([b"1", b"garbage"]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call if kind == "stream_unary" else [each async for each in call]
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == f"/t.T/{method}: the request is no message of its type"

    with caplog.at_level(logging.WARNING):
        play(folder, scene)
    # gRPC's poller may still come back to the loop of an earlier test, which asyncio tells.
    assert not [each for each in caplog.records if each.name != "asyncio"]


def test_log_lines_are_one_line_whatever_came_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from imagestore.server import logs

    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        for style in ("text", "json"):
            logs.install(style, "info")
            logging.getLogger("imagestore.test").warning("odd", extra={"error": 'a\n"b"\x1b', "count": 3})
        text, line = capsys.readouterr().err.splitlines()
    finally:
        logging.basicConfig(handlers=before, level=level, force=True)
    assert text.endswith('WARNING odd error="a\\\\n\\"b\\"\\\\x1b" count=3')
    found = json.loads(line)
    assert (found["message"], found["level"], found["error"], found["count"]) == ("odd", "warning", 'a\n"b"\x1b', 3)


@pytest.mark.parametrize(
    ("method", "is_let_in"),
    [
        ("/grpc.health.v1.Health/Check", True),
        ("/grpc.health.v1.Health/Watch", False),
        ("/t.T/Check", False),
    ],
)
def test_a_stopping_server_admits_single_health_checks_only(method: str, is_let_in: bool) -> None:
    """Who watches would come again and again, and hold it until the time for calls is over."""
    aborted: list[grpc.StatusCode] = []

    class Context:
        async def abort(self, code: grpc.StatusCode, _details: str) -> None:
            aborted.append(code)

    watch, context = CallWatch(Numbers()), Context()
    watch.is_stopping = True
    call = Call(method, "", 0.0, None, contextvars.ContextVar[str]("name").set(""))
    asyncio.run(watch.admit(call, context))  # type: ignore[arg-type]
    assert aborted == ([] if is_let_in else [grpc.StatusCode.UNAVAILABLE])
