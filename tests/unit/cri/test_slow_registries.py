"""Registries that don't answer hold up no pull from another one, from the call to the request."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest

from imagestore import ImageStore, config, platforms
from imagestore.protos.cri import api_pb2, api_pb2_grpc
from tests.support.cri_server import cri_server
from tests.support.patience import until

EACH: Final = 10
QUICK: Final = "127.0.1.1"


class Registries(httpx.BaseTransport):
    """All but one hold their answers back; none has anything."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.go = threading.Event()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.add(request.url.host)
        if request.url.host != QUICK:
            assert self.go.wait(120)
        return httpx.Response(404)


@pytest.mark.parametrize("hosts", [1, 4, 16, 64])
def test_slow_registries_hold_up_no_other_one(tmp_path: Path, hosts: int) -> None:
    registries = Registries()
    host = platforms.parse("linux/amd64")
    with (
        ImageStore(tmp_path / "root", config=config.default(host), host=host, transport=registries) as store,
        cri_server(store) as server,
        grpc.insecure_channel(server.endpoint) as channel,
    ):
        pull: Any = api_pb2_grpc.ImageServiceStub(channel).PullImage

        def image(name: str) -> api_pb2.PullImageRequest:
            return api_pb2.PullImageRequest(image=api_pb2.ImageSpec(image=name))

        try:
            slow = [pull.future(image(f"127.0.0.{n}:{5000 + at}/app:{at}")) for n in range(hosts) for at in range(EACH)]
            until(lambda: len(registries.asked) == hosts, "each of them is asked")
            with pytest.raises(grpc.RpcError) as ended:
                pull(image(f"{QUICK}:5000/app:1"), timeout=60)
            assert ended.value.code() is grpc.StatusCode.NOT_FOUND
            assert not any(call.done() for call in slow)
        finally:
            for call in slow:
                call.cancel()
            registries.go.set()
