"""What the service manager gives us and hears from us: readiness, signs of life."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from imagestore.server.systemd import Notifier


@pytest.fixture
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path_factory.mktemp("n") / "n"))
        receiver.settimeout(60)
        yield receiver


def test_manager_gets_start_reload_watchdog_and_stop(manager: socket.socket) -> None:
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


def test_a_manager_that_reads_nothing_holds_up_no_call(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []

    class Sender(socket.socket):
        def settimeout(self, value: float | None, /) -> None:
            waits.append(value)
            super().settimeout(value)

    monkeypatch.setattr("imagestore.server.systemd.socket.socket", Sender)
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    for number in range(1000):  # more than its queue holds
        notifier.status(f"{number} images")
        notifier.alive()
    assert manager.recv(4096) == b"STATUS=0 images"
    assert set(waits) == {0.0}


def test_abstract_addresses_begin_with_an_at_sign() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0imagestore-test-" + os.urandom(4).hex())
        receiver.settimeout(60)
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
