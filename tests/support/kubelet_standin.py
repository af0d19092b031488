"""A process that makes a kubelet's CRI calls; it reads lines of JSON and answers each with one.

``python -m tests.support.kubelet_standin IMAGE_ENDPOINT RUNTIME_ENDPOINT``. A line is a list of calls, which are made
at once: ``[{"method": "PullImage", "request": {…}, "seconds": 60}]``. The answer is the list of their answers, each
``{"answer": {…}}`` or ``{"code": "NOT_FOUND", "details": "…"}``. It ends with its input.

A process of its own, so that it shares nothing with the program under test but the sockets: its messages come from
``kubelet_calls.proto`` by Debian's protoc.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from tests.support.peers import need

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from google.protobuf.descriptor import MethodDescriptor
    from google.protobuf.message import Message

    Call = Callable[..., Message]

_PROTO: Final = Path(__file__).with_name("kubelet_calls.proto")
_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.default_authority", "localhost"),  # Go's servers refuse the path of a socket
    ("grpc.enable_http_proxy", 0),
    # A server that was restarted is there again at the next call.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)


def main() -> int:
    """Serve standard input until it ends."""
    images, runtime = (grpc.insecure_channel(endpoint, options=_OPTIONS) for endpoint in sys.argv[1:])
    calls = _calls({"ImageService": images, "RuntimeService": runtime})
    with ThreadPoolExecutor(64) as pool:
        for line in sys.stdin:
            answers = list(pool.map(lambda wanted: _answer(calls, wanted), json.loads(line)))
            print(json.dumps(answers), flush=True)
    return 0


def _calls(channels: Mapping[str, grpc.Channel]) -> dict[str, tuple[type[Message], Call]]:
    """By method: the request's class, and what calls it."""
    compile_ = [need("protoc"), f"--proto_path={_PROTO.parent}", "--descriptor_set_out=/dev/stdout", _PROTO.name]
    done = subprocess.run(compile_, check=True, capture_output=True)
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(done.stdout).file
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    services = pool.FindFileByName(file.name).services_by_name
    methods = [(channels[name], method) for name, service in services.items() for method in service.methods]
    return {method.name: _call(channel, method) for channel, method in methods}


def _call(channel: grpc.Channel, method: MethodDescriptor) -> tuple[type[Message], Call]:
    asked = message_factory.GetMessageClass(method.input_type)
    answered = message_factory.GetMessageClass(method.output_type)
    path = f"/{method.containing_service.full_name}/{method.name}"
    call = channel.unary_unary(path, asked.SerializeToString, answered.FromString)
    return asked, call


def _answer(calls: Mapping[str, tuple[type[Message], Call]], wanted: Mapping[str, Any]) -> dict[str, object]:
    asked, call = calls[wanted["method"]]
    request = json_format.ParseDict(wanted["request"], asked())
    try:
        answer = call(request, timeout=wanted["seconds"])
    except grpc.RpcError as error:
        return {"code": error.code().name, "details": error.details()}
    return {"answer": json_format.MessageToDict(answer, preserving_proto_field_name=True)}


if __name__ == "__main__":
    sys.exit(main())
