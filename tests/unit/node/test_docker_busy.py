"""A Docker Engine that accepts connections slowly."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from imagestore import CancelToken
from imagestore.errors import OperationCancelledError, ServiceUnavailableError
from imagestore.node.docker.http import EngineConnection

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[socket.socket, str]]:
    """A listener whose line has no place left."""
    path = str(tmp_path_factory.mktemp("d") / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        yield listener, path


def answer(listener: socket.socket) -> None:
    time.sleep(0.1)
    listener.listen(16)
    listener.settimeout(60)
    with contextlib.suppress(TimeoutError):
        listener.accept()[0].close()
        while True:
            connection, _ = listener.accept()
            with connection:
                request = connection.recv(1000)
                if request:  # not somebody who only knocks
                    connection.sendall(b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 2\r\n\r\nOK")
                if b"/info" in request:
                    return


def test_a_full_line_is_waited_for(full: tuple[socket.socket, str]) -> None:
    listener, path = full
    thread = threading.Thread(target=answer, args=(listener,))
    thread.start()
    connection = EngineConnection(path, timeout_seconds=60)
    try:
        assert connection.request("GET", "/info") == b"OK"
    finally:
        connection.close()
        thread.join()


def test_a_line_that_stays_full_ends_with_the_time_or_the_token(full: tuple[socket.socket, str]) -> None:
    _, path = full
    connection = EngineConnection(path, timeout_seconds=0.05)
    with pytest.raises(ServiceUnavailableError, match="can't be reached: Resource temporarily unavailable"):
        connection.request("GET", "/info")
    token = CancelToken()
    token.cancel()
    patient = EngineConnection(path, timeout_seconds=60)
    with (
        pytest.raises(OperationCancelledError),
        patient.stream("/p", "pull", query={}, headers={}, stall_seconds=1, cancel=token),
    ):
        pass
