"""The server as a process: started, drained and killed, with clients at work."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import imagestore
from imagestore import CancelToken
from imagestore.cri import ImageSpec
from imagestore.errors import ImageStoreError, OperationCancelledError
from imagestore.protos.cri import api_pb2, api_pb2_grpc
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, synthetic_layer
from imagestore.testing.faults.bodies import Drip
from tests.integration.test_server_reload import _HANDLER
from tests.support.go_client import GoClient, build
from tests.support.node import CONFIG
from tests.support.patience import until
from tests.support.peers import need
from tests.support.server import Server, serving, short_folder
from tests.support.slow_pulls import HERE, LARGE, MIB, SIZE, SMALL, pulling, received, registry

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "root") as running:
        yield running


# -- start and end ---------------------------------------------------------------------------------------------------


def test_one_process_serves_several_sockets_with_the_rights_asked_for(tmp_path: Path) -> None:
    with short_folder() as other:
        second = f"unix://{other}/second.sock"
        with serving(tmp_path / "root", "--listen", second, "--socket-mode", "0600", "--socket-group", "0") as server:
            for path in (server.socket, other / "second.sock"):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                with server.client(f"unix://{path}") as client:
                    assert client.version().name == "imagestore"
            assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o711
            server.send(signal.SIGTERM)
            assert server.wait() == 0
            assert not server.socket.exists()
            assert not (other / "second.sock").exists()


def test_health_and_reflection_say_what_is_served(server: Server) -> None:
    with grpc.insecure_channel(server.endpoint) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", "runtime.v1.ImageService", "containerd.services.content.v1.Content"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([ask]))
        names = {each.name for each in answer.list_services_response.service}
        assert {"runtime.v1.ImageService", "runtime.v1.RuntimeService", "grpc.health.v1.Health"} <= names
        for name in sorted(names):
            ask = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
            (answer,) = stub.ServerReflectionInfo(iter([ask]))
            assert answer.file_descriptor_response.file_descriptor_proto, f"{name}: {answer.error_response}"


def test_second_server_at_the_same_socket_is_refused_and_the_first_goes_on(server: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "imagestore", "serve", "--listen", server.endpoint, "--root", str(tmp_path / "r2")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "another imagestore server listens there" in done.stderr
    with server.client() as client:
        assert client.version().name == "imagestore"


def test_nothing_to_listen_at_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "imagestore", "--root", str(tmp_path), "serve"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "nothing to listen at" in done.stderr


def test_socket_left_by_a_killed_server_is_replaced(tmp_path: Path) -> None:
    with short_folder() as folder:
        first = Server(folder, tmp_path / "root")
        with contextlib.closing(first):
            first.hear("READY=1")
            first.process.kill()
            first.wait()
        assert first.socket.exists()
        with contextlib.closing(Server(folder, tmp_path / "root")) as second:
            second.hear("READY=1")
            with second.client() as client:
                assert client.list() == []


def test_watchdog_is_fed(tmp_path: Path) -> None:
    with serving(tmp_path / "root", environment={"WATCHDOG_USEC": "200000"}) as server:
        server.hear("WATCHDOG=1")
        server.hear("WATCHDOG=1")


# -- drain -----------------------------------------------------------------------------------------------------------


def test_drain_lets_a_pull_finish_and_takes_no_new_work(tmp_path: Path) -> None:
    with (
        registry(bytes_per_second=4 * MIB) as source,
        serving(tmp_path / "root") as server,
        pulling(server, source.server.reference(LARGE)) as pull,
    ):
        until(lambda: received(tmp_path / "root"), "bytes come")
        server.send(signal.SIGTERM)
        server.hear("STOPPING=1")
        assert not server.socket.exists()
        with pytest.raises(ImageStoreError), server.client() as late:
            late.version()
        assert pull.result(60).startswith("sha256:")
        assert server.wait() == 0


def test_who_watches_a_servers_health_hears_of_its_end_from_it(tmp_path: Path) -> None:
    with serving(tmp_path / "root") as server, grpc.insecure_channel(server.endpoint) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watching = stub.Watch(health_pb2.HealthCheckRequest(service="runtime.v1.ImageService"))
        assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
        server.send(signal.SIGTERM)
        assert next(watching).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            next(watching)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.wait() == 0


def test_callers_who_come_while_a_server_ends_are_answered_or_refused(tmp_path: Path) -> None:
    """gRPC itself ends a call with CANCELLED that comes in the moment in which it stops."""
    codes: collections.Counter[str] = collections.Counter()
    is_over = threading.Event()

    def ask(server: Server) -> None:
        with grpc.insecure_channel(server.endpoint, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub: Any = api_pb2_grpc.ImageServiceStub(channel)
            while not is_over.is_set():
                try:
                    stub.ListImages(api_pb2.ListImagesRequest(), timeout=60)
                    codes["OK"] += 1
                except grpc.RpcError as error:
                    codes[error.code().name] += 1
                    time.sleep(0.05)

    with serving(tmp_path / "root") as server, ThreadPoolExecutor() as pool:
        done = [pool.submit(ask, server) for _ in range(8)]
        until(lambda: codes["OK"] > 200, "callers are busy")
        server.send(signal.SIGTERM)
        status = server.wait()
        is_over.set()
        for each in done:
            each.result(90)
    assert status == 0
    assert {"OK", "UNAVAILABLE"} <= codes.keys() <= {"OK", "UNAVAILABLE", "CANCELLED"}


@pytest.mark.parametrize("how", ["timeout", "second signal"])
def test_drain_that_takes_too_long_ends_and_the_next_server_resumes(tmp_path: Path, how: str) -> None:
    seconds = "0.3s" if how == "timeout" else "10m"
    root = tmp_path / "root"
    with registry(bytes_per_second=MIB) as source:
        with (
            serving(root, "--drain-timeout", seconds) as server,
            pulling(server, source.server.reference(LARGE)) as pull,
        ):
            until(lambda: received(root) > MIB // 2, "half a mebibyte comes")
            server.send(signal.SIGTERM)
            server.hear("STOPPING=1")
            if how == "second signal":
                server.send(signal.SIGTERM)
            assert server.wait() == 0
            with pytest.raises(ImageStoreError):
                pull.result(60)
        kept = received(root)
        assert kept
    with registry() as source, serving(root) as server, server.client() as client:
        # Another registry's address is another reference, but the blob is the same.
        client.pull(ImageSpec(source.server.reference(LARGE)))
        sent = sum(each.sent_bytes for each in source.ledger.entries if each.kind == "blob")
        assert sent < SIZE - kept + 64 * 1024


# -- fairness --------------------------------------------------------------------------------------------------------


def test_pulls_from_a_slow_registry_stop_no_other_registrys(tmp_path: Path) -> None:
    image = build_image(HERE, seed="slow", layers=[synthetic_layer("slow", MIB)])
    names = [f"registry.example/slow/app:{number}" for number in range(20)]
    drip = FaultRule(Drip(bytes_per_second=4096), Where(kind="blob"), times=0)
    with (
        RegistryServer(dict.fromkeys(names, image), faults=[drip]) as slow,
        registry() as source,
        serving(tmp_path / "root") as server,
        server.client() as client,
        contextlib.ExitStack() as pulls,
    ):
        cancel = CancelToken()
        for name in names:
            pulls.enter_context(pulling(server, slow.server.reference(name), cancel))
        # It may take a further place only while at least as many are free as it holds.
        until(lambda: sum(each.kind == "manifest" for each in slow.ledger.entries) == 9, "nine pulls are at work")
        # Ports of one address are one host.
        other = source.server.reference(SMALL).replace("127.0.0.1", "localhost", 1)
        client.pull(ImageSpec(other), cancel=CancelToken(60))
        assert sum(each.kind == "manifest" for each in slow.ledger.entries) == 9
        cancel.cancel("enough")


# -- kill ------------------------------------------------------------------------------------------------------------


def test_killed_in_mid_pull_nothing_is_lost_and_the_pull_is_resumed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with registry(bytes_per_second=4 * MIB) as source:
        with serving(root) as server, server.client() as client:
            kept_id = client.pull(ImageSpec(source.server.reference(SMALL)))
            with pulling(server, source.server.reference(LARGE)) as pull:
                until(lambda: received(root) > MIB, "a mebibyte comes")
                server.process.kill()
                server.wait()
                with pytest.raises(ImageStoreError):
                    pull.result(60)
        before, count = received(root), len(source.ledger.entries)
        assert before
        with serving(root) as server, server.client() as client:
            assert [each.id for each in client.list()] == [kept_id]
            client.pull(ImageSpec(source.server.reference(LARGE)))
            assert len(client.list()) == 2
        later = source.ledger.entries[count:]
        assert sum(each.sent_bytes for each in later if each.kind == "blob") < SIZE - before + 64 * 1024


def test_cancelled_pull_stops_downloading_and_the_next_one_resumes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    token = CancelToken()
    with registry(bytes_per_second=2 * MIB) as source, serving(root) as server:
        with pulling(server, source.server.reference(LARGE), token) as pull:
            until(lambda: received(root) > MIB // 2, "half a mebibyte comes")
            token.cancel("the test changed its mind")
            with pytest.raises(OperationCancelledError):
                pull.result(60)
        until(lambda: server.log("call"), "the call ends")
        assert server.log("call")[-1]["code"] == "CANCELLED"
        with imagestore.open(root) as store:
            until(lambda: not list(store.metadata.leases.find()), "the transfer's thread has ended")
        before = received(root)
        time.sleep(0.5)
        assert received(root) == before
        with server.client() as client:
            client.pull(ImageSpec(source.server.reference(LARGE)))
            assert len(client.list()) == 1


def test_two_servers_on_one_root_see_each_other(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with registry() as source, serving(root) as one, serving(root) as two, one.client() as first, two.client() as other:
        assert other.list() == first.list() == []
        image = first.pull(ImageSpec(source.server.reference(SMALL)))
        assert [each.id for each in other.list()] == [image]
        assert [each.id for each in first.list()] == [image]
        other.remove(ImageSpec(image))
        assert first.list() == other.list() == []
        with ThreadPoolExecutor(2) as pool:
            pulls = [pool.submit(each.pull, ImageSpec(source.server.reference(LARGE))) for each in (first, other)]
            assert len({each.result(90) for each in pulls}) == 1
        blobs = [each for each in source.ledger.entries if each.kind == "blob" and each.sent_bytes > MIB]
        assert len(blobs) == 1


# -- what it tells about itself --------------------------------------------------------------------------------------


def test_numbers_and_logs_tell_of_a_pull_and_no_secret(tmp_path: Path) -> None:
    from imagestore import Secret
    from imagestore.registry import AuthConfig

    config = tmp_path / "config.toml"
    config.write_text(CONFIG.replace("runhcs-wcow-process", "runc") + _HANDLER)
    options = ("--metrics-listen", "127.0.0.1:0", "--log-level", "debug")
    with registry() as source, serving(tmp_path / "root", *options, config=config) as server, server.client() as client:
        auth = AuthConfig(username="user", password=Secret("hunter2-canary"))
        client.pull(ImageSpec(source.server.reference(SMALL), runtime_handler="extra"), auth=auth)
        (published,) = server.log("numbers published")
        with urllib.request.urlopen(f"http://127.0.0.1:{published['port']}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        numbers = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert float(numbers['imagestore_pulls_total{runtime_handler="extra",status="success"}']) == 1
        assert float(numbers['imagestore_images{runtime_handler="extra"}']) == 1
        assert float(numbers["imagestore_images_nondefault_runtime_handler"]) == 1
        assert float(numbers["imagestore_pulled_bytes_total"]) > 0
        assert float(numbers["imagestore_pulls_in_progress"]) == 0
        assert float(numbers["imagestore_store_blobs"]) > 2
        handled = 'imagestore_rpc_handled_total{grpc_code="OK",grpc_method="/runtime.v1.ImageService/PullImage"}'
        assert float(numbers[handled]) == 1
        (call,) = [each for each in server.log("call") if each["method"] == "/runtime.v1.ImageService/PullImage"]
        assert call["level"] == "info"
        # The worker's own line belongs to the same request.
        assert call["request_id"] in {each.get("request_id") for each in server.log("pulled")}
        assert "hunter2-canary" not in server.log_path.read_text()


def test_collection_frees_what_a_killed_client_left(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with serving(root, "--gc-interval", "1s") as server, server.client() as client, registry() as source:
        client.pull(ImageSpec(source.server.reference(SMALL)))
        orphan = root / "content/blobs/sha256" / ("ab" * 32)
        orphan.write_bytes(b"nobody knows me")
        until(lambda: not orphan.exists(), "the orphan is collected")
        assert len(client.list()) == 1
        assert os.path.exists(server.socket)


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("go"))


def test_go_client_pulls_through_the_socket(go_program: Path, server: Server) -> None:
    with registry() as source, GoClient(go_program, str(server.socket)) as client:
        image = client.ask("pull", source.server.reference(SMALL))["answer"]["image_ref"]
        assert [each["id"] for each in client.ask("list")["answer"]["images"]] == [image]
        assert client.ask("stream")["answer"][0]["id"] == image


def test_content_proxy_has_a_socket_of_its_own_and_keeps_what_it_was_given(tmp_path: Path) -> None:
    with short_folder() as folder:
        place = folder / "p.sock"
        options = ("--proxy-content", f"peer=unix://{place}", "--gc-interval", "1s")
        with serving(tmp_path / "root", *options) as server:
            data = b"content of a containerd"
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"

            def ctr(path: Path, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
                command = [need("ctr"), "--address", str(path), *words]
                return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)

            done = ctr(place, "content", "ingest", "--expected-digest", digest, "ref", stdin=data)
            assert done.returncode == 0, done.stderr
            orphan = tmp_path / "root/content/blobs/sha256" / ("ab" * 32)
            orphan.write_bytes(b"nobody knows me")
            until(lambda: not orphan.exists(), "a collection ran")
            assert ctr(place, "content", "get", digest).stdout == data
            assert b"not found" in ctr(server.socket, "content", "get", digest).stderr
            assert ctr(place, "images", "ls").returncode != 0
