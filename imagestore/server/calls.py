"""One call from its beginning to its end: its name in the logs, what became of it, who else wants to know.

A call that changes something, fails, or takes long is logged at INFO (WARNING where the fault is on this side); the
others, of which a node agent makes several a second, at DEBUG. Requests and answers are never logged: they may carry
credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc

from imagestore.cri import errors as cri
from imagestore.errors import ImageStoreError
from imagestore.server.logs import REQUEST_ID, REQUEST_ID_KEY, request_id
from imagestore.util import rpc

if TYPE_CHECKING:
    from contextvars import Token

    from imagestore.server.tracing import Span, Tracing


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
#: Methods that last until their caller has heard enough.
_ENDLESS: Final = frozenset({"ServerReflectionInfo", "Watch"})
#: Methods after which content may be free to collect.
_REMOVALS: Final = ("Remove", "Delete")


@dataclass(slots=True)
class Call:
    """A call in progress.

    Attributes:
        method: ``/package.Service/Method``.
        request_id: its name in logs.
        code: what became of it.
        details: the message its caller gets.
        span: its place in a trace, where traces are kept.
        is_stopped: the server itself ended it.
    """

    method: str
    request_id: str
    began_at: float
    task: asyncio.Task[Any] | None
    token: Token[str]
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    span: Span | None = None
    is_stopped: bool = False

    @property
    def name(self) -> str:
        """The method's name alone."""
        return self.method.rpartition("/")[2]


class CallWatch:
    """Follows every call; for one event loop.

    Args:
        numbers: counts them.
        tracing: keeps spans, or None.
    """

    def __init__(self, numbers: CallNumbers, tracing: Tracing | None = None) -> None:
        self._numbers = numbers
        self._tracing = tracing
        self._calls: dict[asyncio.Task[Any], Call] = {}
        #: New calls are turned away.
        self.is_stopping = False
        #: How many calls ended that may have set content free.
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
        self._numbers.began(method)
        if self._tracing is not None:
            call.span = self._tracing.begin(method, metadata)
        return call

    async def admit(self, call: Call, context: ServicerContext) -> None:
        """Turn a call away while the server stops; who asks once for its health hears that it doesn't serve."""
        if self.is_stopping and call.method != _HEALTH:
            await context.abort(grpc.StatusCode.UNAVAILABLE, STOPPING)

    async def failed(self, call: Call, context: ServicerContext, error: BaseException) -> None:
        """A handler raised; what isn't meant for the caller is logged here and ends as INTERNAL."""
        if isinstance(error, asyncio.CancelledError):
            if call.is_stopped:
                # gRPC would end the call without a word, and its caller would wait for ever.
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
        self._numbers.ended(call.method, call.code.name, seconds)
        if call.span is not None:
            call.span.end(call.code.name)
        if call.name.startswith(_REMOVALS):
            self.removals += 1
        self._log(call, seconds)
        REQUEST_ID.reset(call.token)

    def stop_all(self) -> None:
        """End every call in progress; its caller is told that the server stops."""
        for task, call in self._calls.items():
            call.is_stopped = True
            task.cancel()

    @property
    def in_progress(self) -> int:
        """Calls that have not ended, without those that last until their callers have heard enough."""
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


class CallNumbers(Protocol):
    """Hears of every call."""

    def began(self, method: str) -> None:
        """A call starts.

        Args:
            method: ``/package.Service/Method``.
        """

    def ended(self, method: str, code: str, seconds: float) -> None:
        """A call is over.

        Args:
            method: ``/package.Service/Method``.
            code: name of its status code.
            seconds: how long it took.
        """


class NoNumbers:
    """Counts nothing."""

    def began(self, method: str) -> None:
        """See CallNumbers."""

    def ended(self, method: str, code: str, seconds: float) -> None:
        """See CallNumbers."""
