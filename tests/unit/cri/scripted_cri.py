"""A CRI server whose methods are functions of a test, and a client of it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from imagestore.cri.client import CriImageService
from imagestore.protos.cri import api_pb2 as cri


class Scripted(grpc.GenericRpcHandler):
    """A server whose methods are functions; the others are unimplemented. Remembers the calls."""

    def __init__(self, answers: dict[str, Callable[[Any, grpc.ServicerContext], Any]]) -> None:
        self.answers = answers
        self.calls: list[tuple[str, Any]] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        name = handler_call_details.method.rpartition("/")[2]
        self.metadata = handler_call_details.invocation_metadata
        kind: Any = getattr(cri, f"{name}Request")

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            self.calls.append((name, request))
            return self.answers[name](request, context)

        coders = {
            "request_deserializer": kind.FromString,
            "response_serializer": lambda message: message.SerializeToString(),
        }
        if name not in self.answers:
            self.calls.append((name, None))
            return None
        if name.startswith("Stream"):
            return grpc.unary_stream_rpc_method_handler(answer, **coders)
        return grpc.unary_unary_rpc_method_handler(answer, **coders)


@contextmanager
def serving(**answers: Callable[[Any, grpc.ServicerContext], Any]) -> Iterator[tuple[CriImageService, Scripted]]:
    """A client of a scripted server."""
    folder = tempfile.mkdtemp(prefix="cri-")
    scripted = Scripted(answers)
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, handlers=[scripted])
        server.add_insecure_port(f"unix:{folder}/s.sock")
        server.start()
        try:
            with CriImageService(f"unix://{folder}/s.sock", timeout_seconds=30) as client:
                yield client, scripted
        finally:
            server.stop(0).wait()
            shutil.rmtree(folder)


def aborting(code: grpc.StatusCode, details: str, data: object = None) -> Callable[[Any, grpc.ServicerContext], Any]:
    """A method that fails, perhaps with our error data."""

    def method(_: Any, context: grpc.ServicerContext) -> Any:
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        context.set_trailing_metadata((("imagestore-error-bin", raw),) if data is not None else ())
        context.abort(code, details)

    return method
