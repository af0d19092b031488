"""Who takes nothing of what waits for it is disconnected, and nobody else."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.server.connections import Connections


class Place:
    """A listening socket, and what connected there: pairs of (client, server)."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.path = str(path)
        self.listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self.listener.bind(self.path)
        self.listener.listen()

    def join(self) -> tuple[socket.socket, socket.socket]:
        client = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        client.connect(self.path)
        client.settimeout(5)
        server, _ = self.listener.accept()
        return client, self._stack.enter_context(server)


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        yield Place(tmp_path_factory.mktemp("c") / "s", stack)


class Scene:
    def __init__(self, place: Place) -> None:
        self.now = 0.0
        self.connections = Connections(lambda: self.now)
        self.connections.add(place.path)

    def cut_after(self, seconds: float) -> int:
        self.now += seconds
        return self.connections.cut(2.0)


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        while client.recv(4096):
            pass
    except BlockingIOError:
        return True
    return False


def test_who_reads_nothing_is_disconnected_once_its_time_is_over(place: Place) -> None:
    scene = Scene(place)
    client, server = place.join()
    server.sendall(b"answer")
    assert [scene.cut_after(seconds) for seconds in (10, 1.9, 0.1)] == [0, 0, 1]
    assert not is_open(client)


def test_who_reads_or_has_nothing_to_read_stays(place: Place) -> None:
    scene = Scene(place)
    (idle, _), (reader, server) = place.join(), place.join()
    for _ in range(5):
        server.sendall(b"answer" * 1000)
        assert scene.cut_after(3) == 0
        assert reader.recv(6000)
        assert scene.cut_after(3) == 0
    assert is_open(idle)
    assert is_open(reader)


def test_slow_reader_stays_as_long_as_it_takes_something(place: Place) -> None:
    scene = Scene(place)
    client, server = place.join()
    for _ in range(20):
        server.sendall(b"piece")
    for _ in range(10):
        client.recv(5)
        assert scene.cut_after(1.5) == 0
    assert is_open(client)


def test_sockets_of_others_are_left_alone(place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
    scene = Scene(place)
    one, two = socket.socketpair()
    with one, two, contextlib.ExitStack() as stack:
        other, server = Place(tmp_path_factory.mktemp("d") / "s", stack).join()
        one.sendall(b"x")
        server.sendall(b"x")
        assert [scene.cut_after(seconds) for seconds in (1, 5, 5)] == [0, 0, 0]
        assert is_open(other)
        assert is_open(two)


def test_looking_leaves_no_descriptor_open(place: Place) -> None:
    import os

    scene = Scene(place)
    pairs = [place.join() for _ in range(5)]
    for _, server in pairs:
        server.sendall(b"x")
    before = len(os.listdir("/proc/self/fd"))
    scene.cut_after(1)
    assert scene.cut_after(3) == 5
    assert len(os.listdir("/proc/self/fd")) == before
