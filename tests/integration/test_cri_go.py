"""A client built with Go's gRPC, which the kubelet and crictl use, against our server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cri_server import cri_server
from tests.support.go_client import GoClient, build
from tests.support.node import HYPERV, PROCESS, PYTHON, node

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("go"))


@pytest.fixture
def go(program: Path, tmp_path: Path) -> Iterator[GoClient]:
    with node(tmp_path) as here, cri_server(here.store) as server, GoClient(program, server.socket) as client:
        yield client


def test_two_handlers_two_images_through_gos_grpc(go: GoClient) -> None:
    process = go.ask("pull", PYTHON)["answer"]["image_ref"]
    hyperv = go.ask("pull", PYTHON, HYPERV)["answer"]["image_ref"]
    assert process != hyperv
    listed = go.ask("list")["answer"]["images"]
    assert {each["spec"]["runtime_handler"]: each["id"] for each in listed} == {PROCESS: process, HYPERV: hyperv}
    assert go.ask("stream")["answer"] == listed
    assert go.ask("list", PYTHON, HYPERV)["answer"]["images"] == [listed[0]]
    assert go.ask("status", PYTHON)["answer"]["image"] == listed[1]
    go.ask("remove", hyperv)
    assert go.ask("status", PYTHON, HYPERV)["answer"] == {}
    assert go.ask("list")["answer"]["images"] == [listed[1]]


def test_gos_grpc_reads_our_statuses(go: GoClient) -> None:
    refused = go.ask("pull", PYTHON, "gvisor")
    assert refused["code"] == "InvalidArgument"
    assert refused["error"].startswith("runtime handler 'gvisor' is not configured")
    assert go.ask("pull", PYTHON, PROCESS, "0")["code"] == "DeadlineExceeded"
    assert go.ask("pull", "registry.example/none:1")["code"] == "NotFound"
    # The answer's trailer is as long as we let it be, and Go's limits are its own.
    assert go.ask("pull", "\u00e9" * 5000)["code"] == "InvalidArgument"


def test_the_runtime_introduces_itself_to_go(go: GoClient) -> None:
    assert go.ask("version")["answer"]["runtime_name"] == "imagestore"
    assert [each.get("name", "") for each in go.ask("handlers")["answer"]] == ["", "kata", HYPERV, PROCESS]
