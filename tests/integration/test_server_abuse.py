"""Clients that are broken, greedy or hostile: they hurt themselves, nobody else, and cost bounded memory."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from imagestore import ImageStore, platforms
from imagestore import config as configuration
from imagestore.cri import ImageSpec
from imagestore.protos.cri import api_pb2, api_pb2_grpc
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, build_index, synthetic_layer
from imagestore.testing.faults.bodies import Drip
from tests.support.patience import until
from tests.support.server import Server, serving

pytestmark = pytest.mark.integration

HERE = platforms.host.detect()
MIB = 1024 * 1024
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000040000000000")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "root") as running:
        yield running


def connect(server: Server) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(60)
    client.connect(str(server.socket))
    return client


def fill(root: Path, count: int) -> None:
    """Records of images, all of one manifest, as pulls would have written them."""
    image = build_index([HERE])
    with (
        RegistryServer({"registry.example/base:1": image}) as source,
        ImageStore(root, config=configuration.default(HERE), host=HERE) as store,
    ):
        record = store.pull(source.server.reference("registry.example/base:1")).record
        import dataclasses

        with store.metadata.exclusive():
            for index in range(count - 1):
                name = f"registry.example/project-{index % 50}/image-{index}:v1"
                store.metadata.images.put(dataclasses.replace(record, reference=name), {})


def test_bytes_that_are_no_http_harm_nobody(server: Server) -> None:
    random_bytes = random.Random(7)
    with server.client() as client:
        client.version()
        for index in range(60):
            with connect(server) as broken:
                start = [b"", PREFACE, PREFACE + SETTINGS][index % 3]
                with contextlib.suppress(OSError):
                    broken.sendall(start + random_bytes.randbytes(1 + random_bytes.randrange(4096)))
                    broken.shutdown(socket.SHUT_WR)
                    while broken.recv(65536):
                        pass
        assert client.version().name == "imagestore"
    assert server.process.poll() is None


def test_messages_that_are_no_messages_are_refused_as_such(server: Server) -> None:
    with grpc.insecure_channel(server.endpoint) as channel:
        for method in ("ListImages", "ImageStatus", "PullImage"):
            call: Any = channel.unary_unary(f"/runtime.v1.ImageService/{method}")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"\xff\xff\xff\xff\xff", timeout=120)
            assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)
    with server.client() as client:
        assert client.list() == []


def test_messages_of_16_mib_are_read_and_larger_ones_refused(server: Server) -> None:
    before = server.memory_bytes
    with grpc.insecure_channel(server.endpoint, [("grpc.max_send_message_length", -1)]) as channel:
        status = api_pb2_grpc.ImageServiceStub(channel).ImageStatus
        spec = api_pb2.ImageSpec(image="registry.example/a:1", annotations={"a": "x" * (15 * MIB)})
        assert not status(api_pb2.ImageStatusRequest(image=spec), timeout=120).HasField("image")
        spec.annotations["b"] = "x" * (2 * MIB)
        for _ in range(5):
            with pytest.raises(grpc.RpcError) as caught:
                status(api_pb2.ImageStatusRequest(image=spec), timeout=120)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.memory_bytes < before + 100 * MIB


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_are_refused_before_they_are_unpacked(
    server: Server, compression: grpc.Compression
) -> None:
    """A hundred requests of 16 KiB on the wire would take 1.6 GiB."""
    before = server.memory_bytes
    with grpc.insecure_channel(server.endpoint, [("grpc.max_send_message_length", -1)]) as channel:
        for method in ("/runtime.v1.ImageService/ImageStatus", "/containerd.services.content.v1.Content/Write"):
            call: Any = channel.unary_unary(method)
            calls = [call.future(b"\0" * (15 * MIB), compression=compression, timeout=60) for _ in range(50)]
            assert {each.code() for each in calls} == {grpc.StatusCode.UNIMPLEMENTED}
        plain: Any = channel.unary_unary("/runtime.v1.ImageService/ListImages")
        assert plain(b"", timeout=120) == b""
    # Also what gRPC's core has to say of it.
    assert [line for line in server.log_path.read_text().splitlines() if not line.startswith("{")] == []
    assert server.memory_bytes < before + 64 * MIB


@pytest.mark.parametrize(("size", "code"), [(15_000, grpc.StatusCode.OK), (17_000, grpc.StatusCode.RESOURCE_EXHAUSTED)])
def test_headers_of_a_call_have_at_most_16_kib(server: Server, size: int, code: grpc.StatusCode) -> None:
    with grpc.insecure_channel(server.endpoint) as channel:
        call: Any = channel.unary_unary("/runtime.v1.ImageService/ListImages")
        answer = call.future(b"", metadata=[("x-filler", "a" * size)], timeout=120)
        assert answer.code() is code


def test_any_number_of_calls_on_one_connection_are_answered(server: Server) -> None:
    with grpc.insecure_channel(server.endpoint) as channel:
        service = api_pb2_grpc.ImageServiceStub(channel)
        service.ListImages(api_pb2.ListImagesRequest())
        asked = [
            service.RemoveImage.future(
                api_pb2.RemoveImageRequest(image=api_pb2.ImageSpec(image=f"registry.example/none:{number}"))
            )
            for number in range(1000)
        ]
        assert [call.code() for call in asked] == [grpc.StatusCode.OK] * len(asked)


def test_thousands_of_connections_are_bounded_and_old_clients_go_on(tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(3000, most - 500)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with (
            serving(tmp_path / "root", "--max-connections", "200") as server,
            server.client() as client,
            contextlib.ExitStack() as stack,
        ):
            client.version()
            before = server.memory_bytes
            for _ in range(count):
                idle = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                idle.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    idle.connect(str(server.socket))
            for _ in range(20):
                assert client.version().name == "imagestore"
            open_files = len(os.listdir(f"/proc/{server.process.pid}/fd"))
            assert open_files < 200 + 100
            assert server.memory_bytes < before + 60 * MIB
            stack.close()
            # Places are free again.
            until(lambda: _answers(server), "a new client is served")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _answers(server: Server) -> bool:
    with grpc.insecure_channel(server.endpoint) as channel:
        version = api_pb2_grpc.RuntimeServiceStub(channel).Version
        try:
            return bool(version(api_pb2.VersionRequest(), timeout=20).runtime_name)
        except grpc.RpcError:
            return False


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _header(name: str, value: str) -> bytes:
    """A literal header of HPACK, without index."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def ask_without_reading(client: socket.socket, method: str, calls: int) -> None:
    """Start calls as a client would whose flow control window is huge, and never read an answer."""
    window = _frame(4, 0, 0, (4).to_bytes(2, "big") + (2**31 - 1).to_bytes(4, "big"))
    client.sendall(PREFACE + window + _frame(8, 0, 0, (2**31 - 1 - 65535).to_bytes(4, "big")))
    fields = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost")]
    fields += [("content-type", "application/grpc"), ("te", "trailers")]
    block = b"".join(_header(name, value) for name, value in fields)
    for index in range(calls):
        stream = 2 * index + 1
        client.sendall(_frame(1, 4, stream, block) + _frame(0, 1, stream, bytes(5)))


def test_clients_that_never_read_hold_up_nobody_and_their_calls_end_with_their_connections(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root, 1000)
    with serving(root, "--metrics-listen", "127.0.0.1:0") as server, server.client() as client:
        assert len(client.list()[0].repo_tags) == 1000
        with contextlib.ExitStack() as stack:
            for index in range(4):
                deaf = stack.enter_context(connect(server))
                method = ["ListImages", "StreamImages"][index % 2]
                ask_without_reading(deaf, f"/runtime.v1.ImageService/{method}", 256)
            for _ in range(5):
                assert client.version().name == "imagestore"
                assert len(client.list()[0].repo_tags) == 1000
                assert server.number("imagestore_rpc_in_progress") <= 4 * 256
        until(lambda: server.number("imagestore_rpc_in_progress") == 0, "their calls end with their connections")
        assert len(client.list()[0].repo_tags) == 1000


def test_quick_calls_stay_quick_while_many_pulls_run_and_wait(tmp_path: Path) -> None:
    images = {
        f"registry.example/large-{index}:1": build_image(
            HERE, seed=f"l{index}", layers=[synthetic_layer(f"l{index}", 2 * MIB)]
        )
        for index in range(40)
    }
    slow = FaultRule(Drip(bytes_per_second=1.0 * MIB), Where(kind="blob"), times=0)
    options = ("--max-concurrent-pulls", "8", "--metrics-listen", "127.0.0.1:0")
    with (
        RegistryServer(images, faults=[slow]) as source,
        serving(tmp_path / "root", *options) as server,
        server.client() as client,
        ThreadPoolExecutor(len(images)) as pool,
    ):
        pulls = [pool.submit(client.pull, ImageSpec(source.server.reference(name))) for name in images]
        until(lambda: server.number("imagestore_pulls_waiting") >= 30, "most pulls wait")
        # All are of one registry, which leaves some of the eight places to others.
        assert server.number("imagestore_pulls_in_progress") == 5
        answered = 0
        while not all(pull.done() for pull in pulls):
            client.list()
            client.version()
            answered += 1
            time.sleep(0.02)
        assert len({pull.result() for pull in pulls}) == len(images)
        # Calls that waited for a pull, or in the pulls' line, would be at most as many.
        assert answered > len(images)
        assert len(client.list()) == len(images)
        assert server.number("imagestore_pulls_in_progress") == server.number("imagestore_pulls_waiting") == 0


def test_registries_that_do_not_answer_hold_up_no_other_pull_on_one_connection(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        # Nobody accepts what the kernel has connected.
        silent = [stack.enter_context(socket.create_server((f"127.0.0.{host}", 0))) for host in range(2, 12)]
        quick = stack.enter_context(RegistryServer({"registry.example/quick:1": build_image(HERE, seed="quick")}))
        server = stack.enter_context(serving(tmp_path / "root", "--metrics-listen", "127.0.0.1:0"))
        channel = stack.enter_context(grpc.insecure_channel(server.endpoint))
        pull = api_pb2_grpc.ImageServiceStub(channel).PullImage

        def image(name: str) -> api_pb2.PullImageRequest:
            return api_pb2.PullImageRequest(image=api_pb2.ImageSpec(image=name))

        addresses = [":".join(map(str, each.getsockname())) for each in silent]
        slow = [pull.future(image(f"{address}/app:{at}")) for address in addresses for at in range(40)]
        # Each is asked for one image at least; more than the pulls that one registry may have run.
        until(lambda: server.number("imagestore_pulls_in_progress") >= 16 + 5, "each registry is asked")
        until(lambda: server.number("imagestore_pulls_waiting") >= 350, "the other pulls wait")
        assert pull(image(quick.server.reference("registry.example/quick:1")), timeout=60).image_ref
        for call in slow:
            call.cancel()


def test_a_hundred_pulls_of_one_image_are_one_download(tmp_path: Path) -> None:
    name = "registry.example/shared:1"
    image = build_image(HERE, seed="shared", layers=[synthetic_layer("shared", 4 * MIB)])
    with (
        RegistryServer({name: image}) as source,
        serving(tmp_path / "root") as server,
        ThreadPoolExecutor(100) as pool,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(server.client()) for _ in range(10)]
        barrier = threading.Barrier(100)

        def pull(index: int) -> str:
            barrier.wait(120)
            return clients[index % 10].pull(ImageSpec(source.server.reference(name)))

        assert len(set(pool.map(pull, range(100)))) == 1
        assert source.ledger.bytes_sent(image.layers[0].digest) == 4 * MIB
