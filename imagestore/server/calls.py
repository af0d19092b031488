"""Follows every gRPC call: its request id, status code, log line, numbers and span.

A call that changes something, fails, or takes long is logged at INFO (WARNING if the fault is the server's); the
others, of which a node agent makes several a second, at DEBUG. Requests and answers are never logged: they may carry
credentials. Requests are parsed here: if gRPC parsed them, it would log an invalid message as a bug of the handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc

from imagestore.cri import errors as cri
from imagestore.errors import ImageStoreError, InvalidInputError
from imagestore.server.logs import REQUEST_ID, REQUEST_ID_KEY, request_id
from imagestore.util import rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextvars import Token

    from imagestore.server.tracing import Tracing

    Handler = grpc.RpcMethodHandler[Any, Any]


log = logging.getLogger(__name__)

ServicerContext = grpc.aio.ServicerContext[Any, Any]

SLOW_SECONDS: Final = 1.0
# A caller's clock may say a moment before ours that its deadline has passed.
_SLACK_SECONDS: Final = 0.02
STOPPING: Final = "the server is being stopped"
#: The method that answers once whether the server serves; the answer is worth most while it stops.
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_OUR_FAULT: Final = frozenset(
    {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNAVAILABLE}
)
#: Methods that change nothing, by the beginnings of their names.
_READS: Final = (
    *("Check", "Get", "ImageFsInfo", "ImageStatus", "Info", "List", "Plugins", "Read", "RuntimeConfig"),
    *("Server", "Stat", "Stream", "Version", "Watch"),
)
#: Methods that last until their caller cancels them.
_ENDLESS: Final = frozenset({"ServerReflectionInfo", "Watch"})
#: Methods after which content may be free to collect.
_REMOVALS: Final = ("Remove", "Delete")
#: Name under which calls of unknown methods are logged and counted: callers could invent any number of names.
UNKNOWN_METHOD: Final = "/unknown/Unknown"


@dataclass(slots=True)
class Call:
    """A call in progress.

    Attributes:
        method: ``/package.Service/Method``.
        details: the message its caller gets.
        is_stopped: the server itself ended it.
    """

    method: str
    request_id: str
    began_at: float
    task: asyncio.Task[Any] | None
    token: Token[str]
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    span: Any = None
    is_stopped: bool = False

    @property
    def name(self) -> str:
        """The method's name alone."""
        return self.method.rpartition("/")[2]


class CallNumbers(Protocol):
    """Counts calls."""

    def began(self, method: str) -> None:
        """A call starts; the method is ``/package.Service/Method``."""

    def ended(self, method: str, code: str, seconds: float) -> None:
        """A call ended with the status code of this name."""


class CallWatch:
    """All calls in progress; for one event loop."""

    def __init__(self, numbers: CallNumbers | None = None, tracing: Tracing | None = None) -> None:
        self._numbers = numbers
        self._tracing = tracing
        self._calls: dict[asyncio.Task[Any], Call] = {}
        #: New calls are refused.
        self.is_stopping = False
        #: How many calls ended after which content may be free to collect.
        self.removals = 0

    def began(self, method: str, context: ServicerContext) -> Call:
        """A call starts; its trailing metadata will name the request."""
        metadata = context.invocation_metadata() or ()
        name = request_id(metadata)
        task = asyncio.current_task()
        call = Call(method, name, time.monotonic(), task, REQUEST_ID.set(name))
        if task is not None:
            self._calls[task] = call
        context.set_trailing_metadata(((REQUEST_ID_KEY, name),))
        if self._numbers is not None:
            self._numbers.began(method)
        if self._tracing is not None:
            call.span = self._tracing.begin(method, metadata)
        return call

    async def admit(self, call: Call, context: ServicerContext) -> None:
        """Refuse a call while the server stops, except one health check, which reports NOT_SERVING."""
        if self.is_stopping and call.method != _HEALTH:
            await context.abort(grpc.StatusCode.UNAVAILABLE, STOPPING)

    async def failed(self, call: Call, context: ServicerContext, error: BaseException) -> None:
        """A handler raised: end the call with the error's status code. A bug is logged and ends as INTERNAL."""
        if isinstance(error, asyncio.CancelledError):
            if call.is_stopped:
                # gRPC would end the call without a status, and its caller would wait for ever.
                call.code, call.details = grpc.StatusCode.UNAVAILABLE, STOPPING
                with contextlib.suppress(grpc.aio.UsageError):  # it was being refused just then
                    await context.abort(call.code, call.details)
            # None without a deadline, although the library's types say it isn't.
            remaining: object = context.time_remaining()
            is_late = isinstance(remaining, (int, float)) and remaining <= _SLACK_SECONDS
            call.code = grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED
        elif isinstance(error, grpc.aio.AbortError):
            call.code, call.details = code_of(context), context.details()
        elif isinstance(error, ImageStoreError):
            call.code, call.details, own = _status_of(call.method, error)
            await context.abort(call.code, call.details, (*(context.trailing_metadata() or ()), *own))
        elif isinstance(error, Exception):
            call.code = grpc.StatusCode.INTERNAL
            log.error("a call ended in a bug", exc_info=error, extra={"method": call.method})
            # The exception's own text may hold anything.
            await context.abort(call.code, f"internal error; the server's log has it under request {call.request_id}")

    def ended(self, call: Call, context: ServicerContext) -> None:
        """A call is over."""
        if call.code is grpc.StatusCode.OK:
            # A handler may return normally and still have set a code.
            call.code = code_of(context)
        if call.task is not None:
            self._calls.pop(call.task, None)
        seconds = time.monotonic() - call.began_at
        if self._numbers is not None:
            self._numbers.ended(call.method, call.code.name, seconds)
        if self._tracing is not None:
            self._tracing.end(call.span, call.code.name)
        if call.name.startswith(_REMOVALS):
            self.removals += 1
        self._log(call, seconds)
        REQUEST_ID.reset(call.token)

    def stop_all(self) -> None:
        """End every call in progress with UNAVAILABLE."""
        for task, call in self._calls.items():
            call.is_stopped = True
            task.cancel()

    @property
    def in_progress(self) -> int:
        """How many calls have not ended, without those that last until their callers cancel them."""
        return sum(call.name not in _ENDLESS for call in self._calls.values())

    @staticmethod
    def _log(call: Call, seconds: float) -> None:
        if call.code in _OUR_FAULT:
            level = logging.WARNING
        elif call.code is grpc.StatusCode.OK and call.name.startswith(_READS) and seconds < SLOW_SECONDS:
            level = logging.DEBUG
        else:
            level = logging.INFO
        if not log.isEnabledFor(level):
            return
        fields = {"method": call.method, "code": call.code.name, "seconds": round(seconds, 6)}
        if call.details:
            fields["error"] = call.details
        log.log(level, "call", extra=fields)


def _status_of(method: str, error: ImageStoreError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """An error's code, text and trailing metadata, as the clients of the method's interface expect them."""
    if method.startswith("/runtime."):
        code, text = cri.status_of(error)
        data = cri.data_of(error)
        return code, text, ((cri.ERROR_KEY, data),) if data else ()
    return rpc.code_of(error), rpc.text_of(error, ends_in_class=method.startswith("/containerd.")), ()


def code_of(context: ServicerContext) -> grpc.StatusCode:
    """The status code a call has by now; the library gives a number, or None."""
    code: object = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return _CODES.get(code if isinstance(code, int) else 0, grpc.StatusCode.UNKNOWN)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Lets a watch follow every call of one server."""

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
        if handler is None:
            return None
        behaviour = _behaviour_of(handler)
        if not inspect.iscoroutinefunction(behaviour) and not inspect.isasyncgenfunction(behaviour):
            return handler
        if isinstance(handler, rpc.AbsentMethod):
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
                # The caller has disconnected; gRPC is about to cancel the call, or regards it as ended.
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
    """Write the messages that a handler yields; await a handler that writes them itself."""
    if inspect.isawaitable(answers):
        await answers
        return
    # If the caller disconnects, close the generator's files now instead of at a garbage collection.
    async with contextlib.aclosing(answers):
        async for message in answers:
            await context.write(message)
            del message  # it may be large, and the next one may take long


def _parsed(method: str, raw: Any, parse: Callable[[bytes], Any] | None) -> Any:
    """Parse the message of a request; InvalidInputError if the bytes are no message of the type."""
    if parse is None:
        return raw
    try:
        return parse(raw)
    except Exception as error:  # protobuf's DecodeError; its class depends on the implementation
        raise InvalidInputError(f"{method}: the request is no message of its type") from error


async def _each_parsed(
    method: str, raw: AsyncIterator[bytes], parse: Callable[[bytes], Any] | None
) -> AsyncIterator[Any]:
    """Parse the messages of a stream of requests as they arrive."""
    # Until it is closed, gRPC's generator keeps the last message, and itself through a reference cycle.
    received: Any = aiter(raw)
    async with contextlib.aclosing(received):
        async for each in received:
            yield _parsed(method, each, parse)
