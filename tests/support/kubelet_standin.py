"""A process that makes a kubelet's CRI calls; it reads lines of JSON and answers each with one.

``python -m tests.support.kubelet_standin IMAGE_ENDPOINT RUNTIME_ENDPOINT``. A line is a list of calls, which are made
at once: ``[{"method": "PullImage", "request": {…}, "seconds": 60}]``. The answer is the list of their answers, each
``{"answer": {…}}`` or ``{"code": "NOT_FOUND", "details": "…"}``. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import json_format

from imagestore.protos.cri import api_pb2, api_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Mapping

_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.default_authority", "localhost"),  # Go's servers refuse the path of a socket
    ("grpc.enable_http_proxy", 0),
    # A server that was started again is found at the next call.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)


def main() -> int:
    """Serve standard input until it ends."""
    images, runtime = (grpc.insecure_channel(endpoint, options=_OPTIONS) for endpoint in sys.argv[1:])
    stubs = (api_pb2_grpc.ImageServiceStub(images), api_pb2_grpc.RuntimeServiceStub(runtime))
    # A stub's methods are its attributes.
    methods = {name: method for stub in stubs for name, method in vars(stub).items()}
    with ThreadPoolExecutor(64) as pool:
        for line in sys.stdin:
            answers = list(pool.map(lambda wanted: _answer(methods[wanted["method"]], wanted), json.loads(line)))
            print(json.dumps(answers), flush=True)
    return 0


def _answer(method: Any, wanted: Mapping[str, Any]) -> dict[str, object]:
    request = getattr(api_pb2, f"{wanted['method']}Request")()
    json_format.ParseDict(wanted["request"], request)
    try:
        answer = method(request, timeout=wanted["seconds"])
    except grpc.RpcError as error:
        return {"code": error.code().name, "details": error.details()}
    return {"answer": json_format.MessageToDict(answer, preserving_proto_field_name=True)}


if __name__ == "__main__":
    sys.exit(main())
