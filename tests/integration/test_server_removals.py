"""What a removal through the server brings about, and what it leaves to others."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from tests.support.containerd_client import Client, digest_of
from tests.support.server import serving

pytestmark = pytest.mark.integration

A = digest_of(b"a")


def test_where_collecting_is_left_to_others_only_who_waits_for_it_gets_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with (
        serving(root, "--gc-interval", "0") as server,
        grpc.insecure_channel(f"unix:{server.socket}", options=[("grpc.default_authority", "localhost")]) as channel,
    ):
        client = Client(channel)
        client.create_image("x", A)
        client.create_image("y", A)
        orphan = root / "content/blobs/sha256" / ("ab" * 32)
        orphan.write_bytes(b"nobody knows me")
        client.delete_image("x", is_sync=False)
        time.sleep(1)
        assert orphan.exists()
        client.delete_image("y", is_sync=True)
        assert not orphan.exists()
