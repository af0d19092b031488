"""A gRPC server whose calls are watched, whose repeated answers come from memory, and whose callers must read.

Services register with it as with any server. Handlers are wrapped once, when they are registered: an interceptor would
look each of them up again at every call. The wrapper gets and gives bytes: of methods that may be answered from memory
nothing is parsed while the store's records stand, and how much waits to be read is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from imagestore.rpc.answers import Answer
    from imagestore.server.calls import CallWatch, ServicerContext
    from imagestore.server.memory import AnswerMemory
    from imagestore.server.unread import Unread

    Handler = grpc.RpcMethodHandler[Any, Any]

#: What calls to methods that no service has are logged and counted as.
UNKNOWN_METHOD: Final = "/unknown/Unknown"
# Smaller answers fit into the sockets' own buffers.
_LARGE_BYTES: Final = 16 * 1024
#: A write to a caller who has left fails a moment before its call is cancelled.
_CANCELLED_WITHIN_SECONDS: Final = 1.0


class ObservedServer(grpc.aio.Server):
    """Passes everything on to a server, with wrapped handlers.

    Args:
        server: does the work.
        watch: follows the calls.
        unread: bounds what waits to be read.
        memory: answers repeated questions, or None.
    """

    def __init__(
        self, server: grpc.aio.Server, watch: CallWatch, unread: Unread, memory: AnswerMemory | None = None
    ) -> None:
        self._server = server
        self._watch = watch
        self._memory = memory
        self._unread = unread

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Register services."""
        self._server.add_generic_rpc_handlers([_Observed(handler, self._wrapped) for handler in generic_rpc_handlers])

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Register the methods of one service by name, which saves the search for them."""
        wrapped = {name: self._wrapped(f"/{service_name}/{name}", each) for name, each in method_handlers.items()}
        self._server.add_registered_method_handlers(service_name, wrapped)

    def add_insecure_port(self, address: str) -> int:
        """Listen."""
        return self._server.add_insecure_port(address)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """Listen, encrypted."""
        return self._server.add_secure_port(address, server_credentials)

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def stop(self, grace: float | None) -> None:
        """Stop accepting; cancel what is left after ``grace`` seconds."""
        await self._server.stop(grace)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Wait until it has stopped."""
        return await self._server.wait_for_termination(timeout)

    def _wrapped(self, method: str, handler: Handler) -> Handler:
        behaviour: Any = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )  # one of them is set
        has_messages = inspect.isasyncgenfunction(behaviour)
        if not has_messages and not inspect.iscoroutinefunction(behaviour):
            return handler  # what services don't implement is refused by plain functions in gRPC's own threads
        parse, serialize = handler.request_deserializer, handler.response_serializer
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(
                self._single(method, _reading(method, behaviour, parse), None, serialize)
            )
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._single(method, behaviour, parse, serialize), None, None)
        if not has_messages:  # writes by itself, and so needs gRPC to serialize
            writing = self._writing(method, behaviour)
            if handler.unary_stream:
                return grpc.unary_stream_rpc_method_handler(writing, parse, serialize)
            return grpc.stream_stream_rpc_method_handler(writing, parse, serialize)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._stream(method, behaviour, parse, serialize), None, None)
        return grpc.stream_stream_rpc_method_handler(
            self._stream(method, _reading(method, behaviour, parse), None, serialize)
        )

    def _memory_of(self, method: str) -> AnswerMemory | None:
        return self._memory if self._memory is not None and method in self._memory.methods else None

    def _single(self, method: str, behaviour: Any, parse: Any, serialize: Any) -> Any:
        """A handler with one answer."""
        watch, memory = self._watch, self._memory_of(method)

        async def compute(request: Any, context: ServicerContext) -> Answer:
            message = await behaviour(request, context)
            return (serialize(message) if serialize is not None else message,)

        async def call(raw: Any, context: ServicerContext) -> bytes:
            if memory is not None and not watch.is_stopping:
                began_at = time.monotonic()
                known = memory.known(method, raw)
                # A large one has to pass the limit of what waits to be read.
                if known is not None and len(known[0]) < _LARGE_BYTES:
                    watch.answered(method, context, time.monotonic() - began_at)
                    return known[0]
            async with self._watched(method, context):
                request = await _parsed(method, raw, parse, context)
                if memory is not None:
                    (answer,) = await memory.answer(method, raw, lambda: compute(request, context))
                else:
                    (answer,) = await compute(request, context)
                await self._hand_out(answer)
                return answer

        return _letting_go(call)

    def _stream(self, method: str, behaviour: Any, parse: Any, serialize: Any) -> Any:
        """A handler with a stream of answers."""
        memory = self._memory_of(method)

        async def messages(request: Any, context: ServicerContext) -> AsyncGenerator[bytes, None]:
            # A caller that leaves must find the generator's files closed, not left to the garbage collector.
            async with contextlib.aclosing(behaviour(request, context)) as found:
                async for message in found:
                    raw = serialize(message) if serialize is not None else message
                    del message  # it may be large, and the caller slow
                    yield raw

        async def compute(request: Any, context: ServicerContext) -> Answer:
            return tuple([message async for message in messages(request, context)])

        async def call(raw: Any, context: ServicerContext) -> None:
            async with self._watched(method, context):
                request = await _parsed(method, raw, parse, context)
                if memory is not None:
                    for message in await memory.answer(method, raw, lambda: compute(request, context)):
                        await self._write(context, message)
                    return
                async with contextlib.aclosing(messages(request, context)) as each:
                    async for message in each:
                        await self._write(context, message)

        return _letting_go(call)

    def _writing(self, method: str, behaviour: Any) -> Any:
        async def call(request: Any, context: ServicerContext) -> None:
            async with self._watched(method, context):
                await behaviour(request, context)

        return _letting_go(call)

    @contextlib.asynccontextmanager
    async def _watched(self, method: str, context: ServicerContext) -> AsyncIterator[None]:
        current = self._watch.began(method, context)
        try:
            try:
                await self._watch.admit(current, context)
                yield
            except grpc.aio.InternalError as error:
                # The caller has left while its call was refused, and gRPC cancels no call that it takes for ended.
                raise asyncio.CancelledError from error
        except BaseException as error:
            await self._watch.failed(current, context, error)
            raise
        finally:
            self._watch.ended(current, context)

    async def _hand_out(self, answer: bytes) -> None:
        """Count a large answer until its call is over, which is when its caller has taken it."""
        task = asyncio.current_task()
        if len(answer) >= _LARGE_BYTES and task is not None:
            await self._unread.begin(task, len(answer))
            task.add_done_callback(self._unread.end)

    async def _write(self, context: ServicerContext, message: bytes) -> None:
        task = asyncio.current_task()
        if len(message) < _LARGE_BYTES or task is None:
            await _written(context, message)
            return
        await self._unread.begin(task, len(message))
        try:
            await _written(context, message)
        finally:
            self._unread.end(task)


def _letting_go(call: Callable[[Any, ServicerContext], Awaitable[Any]]) -> Any:
    """A handler of which nothing stays once it is refused.

    gRPC's context keeps the error that ended its call; that keeps the frames it came through, with requests and
    answers, and these keep the context. Only a whole garbage collection would free them: an idle server has none for
    hours.
    """

    async def ended(raw: Any, context: ServicerContext) -> Any:
        try:
            return await call(raw, context)
        except grpc.aio.AbortError as error:
            del raw
            error.__context__ = None
            raise error.with_traceback(None) from None  # gRPC wants this very error

    return ended


async def _written(context: ServicerContext, message: bytes) -> None:
    try:
        await context.write(message)
    except grpc.aio.InternalError:
        # The caller has left, by itself or at its deadline: the call is about to be cancelled.
        await asyncio.sleep(_CANCELLED_WITHIN_SECONDS)
        raise


def _reading(method: str, behaviour: Any, parse: Callable[[bytes], Any] | None) -> Any:
    """A behaviour that gets a stream of requests as messages; gRPC would take one that is none for a bug of ours."""
    if parse is None:
        return behaviour

    async def messages(raw: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        # gRPC's generator holds the last message, and itself by way of its object, until it is closed.
        received: Any = aiter(raw)
        async with contextlib.aclosing(received):
            async for each in received:
                try:
                    message = parse(each)
                except Exception as error:
                    raise InvalidInputError(f"{method}: a request is no message of its type") from error
                yield message

    return lambda raw, context: behaviour(messages(raw), context)


async def _parsed(method: str, raw: Any, parse: Callable[[bytes], Any] | None, context: ServicerContext) -> Any:
    """The request's message; a stream of requests is parsed as it is read."""
    if parse is None:
        return raw
    try:
        return parse(raw)
    except Exception:  # noqa: BLE001 - protobuf's DecodeError, in whichever shape its implementation has it
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{method}: the request is no message of its type")


class _Observed(grpc.GenericRpcHandler):
    """A service whose handlers are wrapped when first called for."""

    def __init__(self, service: grpc.GenericRpcHandler, wrap: Callable[[str, Handler], Handler]) -> None:
        self._service = service
        self._wrap = wrap
        self._wrapped: dict[str, Handler] = {}
        self._has_fixed_methods = isinstance(service, grpc.ServiceRpcHandler)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        method = str(handler_call_details.method)
        wrapped = self._wrapped.get(method)
        if wrapped is not None:
            return wrapped
        handler = self._service.service(handler_call_details)
        if handler is None:
            return None
        if not self._has_fixed_methods:
            # It answers to any name, and callers may invent any number: none is remembered, all are counted as one.
            return self._wrap(UNKNOWN_METHOD, handler)
        self._wrapped[method] = self._wrap(method, handler)
        return self._wrapped[method]
