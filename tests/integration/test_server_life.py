"""What a server and its clients are after hours: memory, connections, a quiet log."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from pathlib import Path

import grpc
import pytest

from imagestore.cri import CriImageService
from imagestore.errors import ServiceUnavailableError
from tests.support.containerd_client import WRITE, Client, message
from tests.support.patience import until
from tests.support.server import Server, serving, short_folder

pytestmark = pytest.mark.integration

MIB = 1024 * 1024


def test_memory_does_not_grow_with_writes(tmp_path: Path) -> None:
    """Each call leaves a circle in gRPC's Python, which keeps its last message until the interpreter looks for them."""
    with serving(tmp_path / "root") as server, grpc.insecure_channel(f"unix:{server.socket}") as channel:
        client = Client(channel, "k8s.io")
        client = client.leasing(client.create_lease("l"))
        for number in range(10):
            client.ingest(os.urandom(3 * MIB), ref=f"first {number}")
        before = server.memory_bytes
        for number in range(150):
            client.ingest(os.urandom(3 * MIB), ref=f"{number}")
        assert server.memory_bytes < before + 150 * MIB


def test_a_client_finds_its_server_after_an_outage(tmp_path: Path) -> None:
    with short_folder() as folder:
        server = Server(folder, tmp_path / "root")
        with contextlib.closing(server):
            server.hear("READY=1")
            client = CriImageService(server.endpoint)
            client.list()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(ServiceUnavailableError):
                client.list()
            time.sleep(0.2)
        again = Server(folder, tmp_path / "root")
        with contextlib.closing(again), client:
            again.hear("READY=1")

            def is_answered() -> bool:
                with contextlib.suppress(ServiceUnavailableError):
                    client.list()
                    return True
                return False

            until(is_answered, "the client finds its server")


def test_callers_who_leave_while_they_are_refused_are_no_bugs(tmp_path: Path) -> None:
    chance = random.Random(7)
    with serving(tmp_path / "root") as server:
        with grpc.insecure_channel(f"unix:{server.socket}") as channel:
            client = Client(channel, "k8s.io")
            client = client.leasing(client.create_lease("l"))
            digest = client.ingest(b"hello" * 100)
            for _ in range(2000):
                # Refused: it is there.
                first = message(WRITE, "again", data=b"", total=500, expected=digest)
                call = client.content.Write(itertools.repeat(first, 1), metadata=client.headers)
                time.sleep(chance.uniform(0.0004, 0.004))
                call.cancel()
        server.close()
        log = server.log_path.read_text()
    assert "ended in a bug" not in log
    assert "Traceback" not in log
