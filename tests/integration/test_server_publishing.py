"""A server that publishes, and the commands beside it: what each of them says, and which of them works."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from imagestore.cri import ImageSpec
from imagestore.testing import RegistryServer, build_image
from tests.support.commands import Commands
from tests.support.fake_containerd import FakeContainerd, fake_containerd
from tests.support.patience import until
from tests.support.server import Server, serving, short_folder

pytestmark = pytest.mark.integration
APP = "registry.example/app:1"
NAME = "imagestore.publish"


@pytest.fixture
def fake() -> Iterator[FakeContainerd]:
    with short_folder() as folder, fake_containerd(folder / "containerd") as running:
        yield running


@pytest.fixture
def server(tmp_path: Path, fake: FakeContainerd) -> Iterator[Server]:
    with serving(tmp_path / "store", "--publish", fake.address) as running:
        yield running


@pytest.fixture
def line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Commands:
    """Commands that aren't told where containerd is."""
    config = tmp_path / "config.toml"
    config.write_text("version = 3\n")
    return Commands(capfd, "--root", str(tmp_path / "store"), "--config", str(config))


def pull(server: Server) -> str:
    with (
        RegistryServer({APP: build_image("linux/amd64")}) as registry,
        server.client() as client,
    ):
        return client.pull(ImageSpec(registry.server.reference(APP)))


def health(server: Server) -> int:
    with grpc.insecure_channel(server.endpoint, options=[("grpc.default_authority", "localhost")]) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(service=NAME), timeout=60).status)


def test_the_service_manager_and_health_checks_hear_of_containerd(server: Server, fake: FakeContainerd) -> None:
    server.hear("STATUS=containerd: ")
    assert health(server) == health_pb2.HealthCheckResponse.SERVING
    pull(server)
    server.hear("STATUS=containerd: 1 published")
    fake.kill()
    assert "killed" in server.hear("STATUS=containerd is away")
    assert health(server) == health_pb2.HealthCheckResponse.NOT_SERVING
    fake.start()
    server.hear("STATUS=containerd: 1 published")


def test_commands_beside_a_server(server: Server, fake: FakeContainerd, line: Commands) -> None:
    image_id = pull(server)
    until(lambda: line.json("publish", "--status")["connected"], "it says that it is connected")
    found = line.json("publish", "--status")
    assert (found["processId"], found["address"]) == (server.process.pid, fake.address)
    assert [(each["id"], each["state"]) for each in found["images"]] == [(image_id, "published")]
    until(lambda: "linked" in line.json("publish", "--status")["images"][0]["bytesByWay"], "the server has told how")
    assert line.json("info")["containerd"]["processId"] == server.process.pid
    waited = line.json("publish")
    assert (waited["processId"], waited["unchanged"]) == (server.process.pid, 1)
    line("unpublish", "--all", status=8)
    line("rmi", image_id)
    assert line.json("publish")["processId"] == server.process.pid
    assert fake.images() == {}


def test_a_command_works_where_a_server_was_killed(server: Server, fake: FakeContainerd, line: Commands) -> None:
    image_id = pull(server)
    server.send(signal.SIGKILL)
    server.wait()
    address = ("--address", fake.address)
    assert line.json("publish", "--status", *address)["processId"] is None
    assert line.json("publish", *address)["unchanged"] == 1
    assert image_id in line.json("unpublish", "--all", *address)["removed"]
    assert (fake.images(), fake.leases()) == ({}, set())
