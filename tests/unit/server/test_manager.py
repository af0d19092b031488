"""What the service manager gives us and hears from us: sockets, readiness, signs of life."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.server.activation import passed_sockets
from imagestore.server.notify import Notifier


@pytest.fixture
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path_factory.mktemp("n") / "n"))
        receiver.settimeout(5)
        yield receiver


def test_manager_hears_of_start_reload_life_and_end(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.ready("serving\nEVIL=1")
    assert manager.recv(4096) == b"READY=1\nSTATUS=serving EVIL=1"
    notifier.reloading()
    first, second = manager.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    assert int(second.partition("=")[2]) > 0
    notifier.alive()
    assert manager.recv(4096) == b"WATCHDOG=1"
    notifier.stopping()
    assert manager.recv(4096) == b"STOPPING=1\nSTATUS=draining"


@pytest.mark.parametrize("status", ["x" * 100_000, "\u00e9" * 100_000, "/folder/\udcff", "\U0001f600\udcff" * 9999])
def test_no_status_keeps_readiness_from_the_manager(manager: socket.socket, status: str) -> None:
    Notifier({"NOTIFY_SOCKET": manager.getsockname()}).ready(status)
    message = manager.recv(1_000_000)
    assert message.startswith(b"READY=1\nSTATUS=")
    assert len(message) <= 4096


def test_abstract_addresses_begin_with_an_at_sign() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0imagestore-test-" + os.urandom(4).hex())
        receiver.settimeout(5)
        Notifier({"NOTIFY_SOCKET": "@" + receiver.getsockname()[1:].decode()}).alive()
        assert receiver.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize("address", ["", "/nowhere/at/all"])
def test_without_a_manager_nothing_happens(address: str) -> None:
    Notifier({"NOTIFY_SOCKET": address}).ready("serving")


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
    ],
)
def test_signs_of_life_come_twice_as_often_as_asked(variables: dict[str, str], seconds: float | None) -> None:
    assert Notifier(variables).watchdog_seconds == seconds


@pytest.mark.parametrize(
    "variables",
    [{}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"}, {"LISTEN_FDS": "x", "LISTEN_PID": str(os.getpid())}],
)
def test_sockets_for_others_are_not_ours(variables: dict[str, str]) -> None:
    variables["LISTEN_FDNAMES"] = "a"
    assert passed_sockets(variables) == []
    assert not variables  # programs we start don't take them for theirs


_CHILD = """
import os, sys
from imagestore.errors import ServerError
from imagestore.server.activation import passed_sockets
os.environ["LISTEN_PID"] = str(os.getpid())
try:
    print([(each.getsockname(), each.get_inheritable(), each.getblocking()) for each in passed_sockets(os.environ)])
except ServerError as error:
    print(error)
"""


def _started_with(descriptor: int) -> str:
    """What a program makes of a descriptor it finds as number 3."""
    shell = f'exec 3<&{descriptor}; LISTEN_FDS=1 exec "$0" -c "$1"'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, _CHILD], pass_fds=[descriptor], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_passed_socket_is_taken_over(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("a") / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        assert _started_with(listener.fileno()) == f"[({str(path)!r}, False, False)]"


@pytest.mark.parametrize("kind", ["tcp", "file", "deaf"])
def test_passed_descriptors_of_another_kind_are_refused(kind: str, tmp_path: Path) -> None:
    if kind == "file":
        with open(tmp_path / "f", "w") as file:
            assert "is no socket" in _started_with(file.fileno())
        return
    family = socket.AF_INET if kind == "tcp" else socket.AF_UNIX
    with socket.socket(family, socket.SOCK_STREAM) as wrong:
        if kind == "tcp":
            wrong.bind(("127.0.0.1", 0))
            wrong.listen()
        assert "expected a listening unix stream socket" in _started_with(wrong.fileno())
