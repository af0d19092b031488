"""Endpoints of gRPC services: what is read, what is refused, and the socket itself."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import InvalidInputError, PreconditionError, ServiceUnavailableError
from imagestore.util.endpoint import Endpoint

SOCKET = "/run/containerd/containerd.sock"


@pytest.mark.parametrize(
    "text", [SOCKET, f"unix://{SOCKET}", f"unix:{SOCKET}", f"UNIX://{SOCKET}", f"  unix://{SOCKET}\n"]
)
def test_a_sockets_path_is_read_with_and_without_its_scheme(text: str) -> None:
    assert Endpoint.parse(text) == Endpoint(SOCKET)
    assert Endpoint.parse(text).text == f"unix://{SOCKET}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "absolute path"),
        ("unix://", "absolute path"),
        ("unix:///", "absolute path"),
        ("run/x.sock", "absolute path"),
        ("unix://run/x.sock", "absolute path"),
        ("tcp://127.0.0.1:3735", "over tcp has no authentication"),
        ("npipe://./pipe/containerd-containerd", "'npipe'"),
        ("http://x", "'http'"),
        ("unix-abstract:x", "'unix-abstract'"),
        ("/run/a\nb", "control characters"),
        ("unix:///a\0b", "control characters"),
        ("/run/\udcff.sock", "UTF-8"),
        ("unix:///" + "x" * 107, "at most 107 bytes"),
        ("unix:///" + "\u00e9" * 60, "at most 107 bytes"),
    ],
)
def test_every_other_endpoint_is_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        Endpoint.parse(text)
    assert caught.value.hint


def test_the_longest_path_of_a_socket_is_still_one() -> None:
    assert len(Endpoint.parse(f"/{'x' * 106}").path) == 107


@given(st.text(max_size=200))
def test_any_text_is_an_endpoint_or_refused(text: str) -> None:
    try:
        endpoint = Endpoint.parse(text)
    except InvalidInputError:
        return
    assert Endpoint.parse(endpoint.text) == endpoint


@pytest.fixture
def listening(tmp_path: Path) -> Endpoint:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(os.fspath(path))
    return Endpoint(os.fspath(path))


def test_a_socket_of_this_user_is_taken(listening: Endpoint) -> None:
    listening.check_socket()


def test_what_is_not_there_may_come(tmp_path: Path) -> None:
    with pytest.raises(ServiceUnavailableError, match="expected a socket: No such file") as caught:
        Endpoint(f"{tmp_path}/none").check_socket()
    assert "running" in caught.value.hint


def test_what_is_no_socket_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("file", "a regular file"), ("pipe", "a device or a pipe"), (".", "a folder")):
        with pytest.raises(InvalidInputError, match=f"expected a socket, it is {what}"):
            Endpoint(f"{tmp_path}/{name}").check_socket()


def test_a_socket_of_another_user_is_refused(listening: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.stat(listening.path).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        listening.check_socket()  # root's socket is everybody's
        os.chown(listening.path, 1234, -1)
    with pytest.raises(PreconditionError, match="owns it") as caught:
        listening.check_socket()
    assert caught.value.hint
