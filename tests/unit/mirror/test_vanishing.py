"""Clients that go away, at whatever stage of whatever answer, are a line of the log and no fault."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from imagestore.testing import FaultRule, RegistryServer, Where, build_image, synthetic_layer
from imagestore.testing.faults import Drip, SlowHead
from tests.support.mirror import mirror_table, running_mirror
from tests.unit.mirror.test_listener import certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYER_BYTES: Final = 12 << 20
IMAGE: Final = build_image(
    "linux/amd64", layers=[synthetic_layer("warm", LAYER_BYTES), synthetic_layer("slow", 1 << 20)]
)
WARM, SLOW = (layer.digest for layer in IMAGE.manifests[0].layers)
#: So many that a list of them doesn't fit into a socket's buffers.
TAGS: Final = {f"registry.example/app:{'x' * 100}{number}": IMAGE for number in range(5000)}
#: Requests, and how many bytes of each answer a client takes before it leaves; None: it leaves within its request.
SHORT: Final = (None, 0, 1, 100)
LONG: Final = (*SHORT, 100_000)
STAGES: Final = (
    ("GET", f"blobs/{WARM}", (*LONG, 5 << 20)),
    ("GET", f"blobs/{SLOW}", LONG),
    ("HEAD", f"blobs/{WARM}", SHORT),
    ("GET", "manifests/1", SHORT),
    ("GET", "manifests/late", SHORT),
    ("GET", "tags/list", LONG),
    ("GET", f"referrers/{IMAGE.target.digest}", SHORT),
)


@contextlib.contextmanager
def serving(folder: Path, *, has_tls: bool) -> Iterator[tuple[tuple[str, int], str, ssl.SSLContext | None]]:
    """A mirror with something warm, something slow and something late; its address, its upstream, how it is trusted."""
    faults = [
        FaultRule(Drip(bytes_per_second=1 << 20), Where(reference=str(SLOW), method="GET"), times=0),
        FaultRule(SlowHead(seconds=0.3), Where(reference="late"), times=0),
    ]
    images = {**TAGS, "registry.example/app:1": IMAGE, "registry.example/app:late": IMAGE}
    settings = certificates(folder) if has_tls else {}
    with RegistryServer(images, faults=faults) as upstream:
        table = mirror_table({upstream.address: ""}, **settings)
        with running_mirror(folder / "root", table) as mirror:
            context = ssl.create_default_context(cafile=settings["client_ca"].strip('"')) if has_tls else None
            yield ("127.0.0.1", httpx.URL(mirror.url).port or 0), upstream.address, context


def ask_and_leave(
    address: tuple[str, int], request: bytes, context: ssl.SSLContext | None, *, taken: int, is_reset: bool
) -> None:
    """Send a request, read so much of its answer, and close the connection."""
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(socket.create_connection(address, timeout=60))
        # So that the mirror is still sending.
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        if is_reset:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client = plain
        if context is not None:
            client = stack.enter_context(context.wrap_socket(plain, server_hostname=address[0]))
        client.sendall(request)
        while taken > 0 and (piece := client.recv(min(taken, 1 << 16))):
            taken -= len(piece)


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_client_that_vanishes_is_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_tls: bool, is_reset: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(tmp_path, has_tls=has_tls) as (address, upstream, context):
        for method, path, stages in STAGES:
            request = f"{method} /v2/app/{path}?ns={upstream} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            for taken in stages:
                sent = request[:20] if taken is None else request
                ask_and_leave(address, sent, context, taken=taken or 0, is_reset=is_reset)
    # The mirror has stopped, so all answers have ended.
    faults = [each for each in caplog.records if each.exc_info or each.levelno > logging.INFO]
    assert not faults, [(each.name, each.getMessage(), each.exc_info) for each in faults]
    gone = [each for each in caplog.messages if "it went away" in each]
    assert gone
