"""Methods that peers have and this server hasn't: a call is answered with what is missing, not with a bare code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from imagestore.errors import UnsupportedError
from imagestore.util.rpc_status import code_of, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(frozen=True, slots=True)
class AbsentMethod(grpc.RpcMethodHandler):  # type: ignore[type-arg]  # generic in the types only
    """A handler that refuses, known as such to interceptors.

    Attributes:
        stream_stream: the refusal; the other attributes are those of every handler.
    """

    stream_stream: Callable[[Any, Any], Any]
    request_streaming: bool = True
    response_streaming: bool = True
    request_deserializer: None = None
    response_serializer: None = None
    unary_unary: None = None
    unary_stream: None = None
    stream_unary: None = None


class AbsentMethods(grpc.GenericRpcHandler):
    """Answers every call below a prefix that nobody else answers.

    Args:
        prefix: how the methods begin, ``/package.``.
        missing: says of a method, named ``/package.Service/Method``, what isn't here.
        ends_in_class: as for ``text_of``.
    """

    def __init__(self, prefix: str, missing: Callable[[str], str], *, ends_in_class: bool = False) -> None:
        self._prefix = prefix
        self._missing = missing
        self._ends_in_class = ends_in_class

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> AbsentMethod | None:
        """A handler that refuses; None for calls elsewhere."""
        method = str(handler_call_details.method)
        if not method.startswith(self._prefix):
            return None

        async def refusing(_: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
            error = UnsupportedError(f"{method.lstrip('/')} is not served here: {self._missing(method)}")
            await context.abort(code_of(error), text_of(error, ends_in_class=self._ends_in_class))

        return AbsentMethod(refusing)
