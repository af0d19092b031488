"""A gRPC server whose calls are watched and whose repeated answers come from memory.

Services register with it as with any server. Handlers are wrapped once, when they are registered: an interceptor would
look each of them up again at every call. Of methods named cacheable the wrapper takes the request's bytes and, while
the store's records stand, gives the bytes it gave before; nothing is parsed then.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping

    from imagestore.rpc.answers import AnswerCache
    from imagestore.server.calls import CallWatch, ServicerContext

    Handler = grpc.RpcMethodHandler[Any, Any]
    Behaviour = Callable[[Any, ServicerContext], Awaitable[Any]]


#: What calls to methods that no service has are logged and counted as.
UNKNOWN_METHOD: Final = "/unknown/Unknown"


class AnswerMemory:
    """What the wrapper needs to answer from memory.

    Args:
        cache: the answers.
        state: the store's state now, or None; quick enough for the event loop.
        methods: full names of the methods whose answers depend on nothing but the request and that state.
    """

    def __init__(self, cache: AnswerCache, state: Callable[[], Hashable], methods: Collection[str]) -> None:
        self.cache = cache
        self.state = state
        self.methods = frozenset(methods)


class ObservedServer(grpc.aio.Server):
    """Passes everything on to a server, with wrapped handlers.

    Args:
        server: does the work.
        watch: follows the calls.
        memory: answers repeated questions, or None.
    """

    def __init__(self, server: grpc.aio.Server, watch: CallWatch, memory: AnswerMemory | None = None) -> None:
        self._server = server
        self._watch = watch
        self._memory = memory

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
        behaviour = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )  # one of them is set
        if not (inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour)):
            return handler  # what services don't implement is refused by plain functions in gRPC's own threads
        if self._memory is not None and method in self._memory.methods and handler.unary_unary:
            return self._remembering(method, handler, self._memory)
        coders = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._single(method, behaviour), *coders)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(self._single(method, behaviour), *coders)
        streaming = self._streaming(method, behaviour)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(streaming, *coders)
        return grpc.stream_stream_rpc_method_handler(streaming, *coders)

    def _single(self, method: str, behaviour: Any) -> Any:
        watch = self._watch

        async def call(request: Any, context: ServicerContext) -> Any:
            current = watch.began(method, context)
            try:
                return await behaviour(request, context)
            except BaseException as error:
                await watch.failed(current, context, error)
                raise
            finally:
                watch.ended(current, context)

        return call

    def _streaming(self, method: str, behaviour: Any) -> Any:
        watch, is_generator = self._watch, inspect.isasyncgenfunction(behaviour)

        async def call(request: Any, context: ServicerContext) -> None:
            current = watch.began(method, context)
            try:
                if not is_generator:
                    await behaviour(request, context)
                    return
                # A caller that leaves must find the generator's files closed, not left to the garbage collector.
                async with contextlib.aclosing(behaviour(request, context)) as messages:
                    async for message in messages:
                        await context.write(message)
            except BaseException as error:
                await watch.failed(current, context, error)
                raise
            finally:
                watch.ended(current, context)

        return call

    def _remembering(self, method: str, handler: Handler, memory: AnswerMemory) -> Handler:
        single, watch = self._single(method, handler.unary_unary), self._watch
        parse, serialize = handler.request_deserializer, handler.response_serializer
        assert parse is not None
        assert serialize is not None
        cache, state_now = memory.cache, memory.state

        async def call(request: bytes, context: ServicerContext) -> bytes:
            began_at = time.monotonic()
            state = state_now()
            known = cache.get(state, method, request)
            if known is not None:
                watch.answered(method, time.monotonic() - began_at)
                return known
            try:
                message = parse(request)
            except Exception:  # noqa: BLE001 - protobuf's DecodeError, in whichever shape its implementation has it
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT, f"{method}: the request is no message of its type"
                )
            answer = serialize(await single(message, context))
            cache.put(state, method, request, answer)
            return answer

        return grpc.unary_unary_rpc_method_handler(call, None, None)


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
