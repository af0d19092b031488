"""A gRPC interceptor that follows every call from its beginning to its end.

Requests are parsed here: if gRPC parsed them, it would log an invalid message as a bug of the handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, Final

import grpc

from imagestore.errors import InvalidInputError
from imagestore.util.rpc import AbsentMethod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from imagestore.server.calls import CallWatch, ServicerContext

    Handler = grpc.RpcMethodHandler[Any, Any]

#: Name under which calls of unknown methods are logged and counted: callers could invent any number of names.
UNKNOWN_METHOD: Final = "/unknown/Unknown"


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Lets a watch follow every call of one server.

    Args:
        watch: names, counts and logs calls, and turns the errors that handlers raise into status codes.
    """

    def __init__(self, watch: CallWatch) -> None:
        self._watch = watch
        self._handlers: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler of a call, followed; see gRPC."""
        method = str(handler_call_details.method)
        if method in self._handlers:
            return self._handlers[method]
        handler = await continuation(handler_call_details)
        # Methods that a service doesn't implement are refused by plain functions, in gRPC's own threads.
        if handler is None or not _is_asynchronous(_behaviour_of(handler)):
            return handler
        if isinstance(handler, AbsentMethod):
            return self._followed(UNKNOWN_METHOD, handler)
        return self._handlers.setdefault(method, self._followed(method, handler))

    def _followed(self, method: str, handler: Handler) -> Handler:
        behaviour, parse = _behaviour_of(handler), handler.request_deserializer
        read = _each_parsed if handler.request_streaming else _parsed
        answer = _write_all if handler.response_streaming else _return_one

        async def _call(raw: Any, context: ServicerContext) -> Any:
            try:
                async with self._watched(method, context):
                    return await answer(behaviour(read(method, raw, parse), context), context)
            except grpc.aio.AbortError as error:
                # gRPC's context keeps this error, whose frames keep the request. Only Python's garbage collector would
                # free them, and in an idle server it doesn't run for hours.
                del raw
                error.__context__ = None
                raise error.with_traceback(None) from None

        return _maker(handler)(_call, None, handler.response_serializer)

    @contextlib.asynccontextmanager
    async def _watched(self, method: str, context: ServicerContext) -> AsyncIterator[None]:
        current = self._watch.began(method, context)
        try:
            try:
                await self._watch.admit(current, context)
                yield
            except grpc.aio.InternalError as error:
                # The caller has left; gRPC is about to cancel the call, or regards it as ended.
                raise asyncio.CancelledError from error
        except BaseException as error:
            await self._watch.failed(current, context, error)
            raise
        finally:
            self._watch.ended(current, context)


def _behaviour_of(handler: Handler) -> Callable[[Any, ServicerContext], Any]:
    """The function of a handler; it has four attributes for it, of which one is set."""
    found: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    return found  # type: ignore[no-any-return]


def _is_asynchronous(behaviour: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour)


def _maker(handler: Handler) -> Callable[..., Handler]:
    if handler.request_streaming:
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler
        return grpc.stream_unary_rpc_method_handler
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler
    return grpc.unary_unary_rpc_method_handler


async def _return_one(answer: Awaitable[Any], _: ServicerContext) -> Any:
    return await answer


async def _write_all(answers: Any, context: ServicerContext) -> None:
    """Write a handler's messages, or let it write by itself."""
    if inspect.isawaitable(answers):
        await answers
        return
    # If the caller leaves, close the generator's files now instead of at a garbage collection.
    async with contextlib.aclosing(answers):
        async for message in answers:
            await context.write(message)
            del message  # it may be large, and the next one may take long


def _parsed(method: str, raw: Any, parse: Callable[[bytes], Any] | None) -> Any:
    """Parse the message of a request.

    Raises:
        InvalidInputError: the bytes are no message of the type.
    """
    if parse is None:
        return raw
    try:
        return parse(raw)
    except Exception as error:  # protobuf's DecodeError; its class depends on the implementation
        raise InvalidInputError(f"{method}: the request is no message of its type") from error


async def _each_parsed(
    method: str, raw: AsyncIterator[bytes], parse: Callable[[bytes], Any] | None
) -> AsyncIterator[Any]:
    """Parse the messages of a stream of requests as they arrive.

    Raises:
        InvalidInputError: the bytes of one are no message of the type.
    """
    # Until it is closed, gRPC's generator keeps the last message, and itself through a reference cycle.
    received: Any = aiter(raw)
    async with contextlib.aclosing(received):
        async for each in received:
            yield _parsed(method, each, parse)
