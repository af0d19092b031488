"""Sockets on disk: never open too wide, never taken from a living server, always taken from a dead one."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from imagestore.errors import InvalidInputError, ServerError
from imagestore.server.settings import loopback_address
from imagestore.server.sockets import SocketFile, SocketRights, prepare_folder


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: the kernel's limit for sockets is 107 bytes."""
    return tmp_path_factory.mktemp("s")


class Listener:
    """Stands for a server: binds where it is told, and remembers what it saw."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.bound = ""
        self.mode = 0

    def __call__(self, path: str) -> None:
        self.socket.bind(path)
        self.mode = stat.S_IMODE(os.lstat(path).st_mode)
        self.socket.listen()
        self.bound = path


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(str(path)) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9090", ("127.0.0.1", 9090)),
        ("localhost:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("127.8.8.8:1", ("127.8.8.8", 1)),
        ("[::ffff:127.0.0.1]:1", ("127.0.0.1", 1)),
    ],
)
def test_loopback_addresses_are_read(text: str, expected: tuple[str, int]) -> None:
    assert loopback_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0:9090",
        "[::]:1",
        "10.0.0.1:1",
        "[::ffff:10.0.0.1]:1",
        "127.0.0.1",
        "127.0.0.1:65536",
        "127.0.0.1:²",
        "host:1",
        ":1",
        "",
    ],
)
def test_numbers_are_for_this_machine_only(text: str) -> None:
    with pytest.raises(InvalidInputError):
        loopback_address(text)


def test_socket_appears_with_its_rights_and_was_never_wider(folder: Path) -> None:
    path, listener = folder / "made" / "s", Listener()
    file = SocketFile(str(path), SocketRights(0o620, os.getgid()))
    with listener.socket:
        file.bind(listener)
        assert stat.S_IMODE(path.lstat().st_mode) == 0o620
        assert listener.mode == 0o600
        assert connects(path)
        file.close()
    assert [each.name for each in path.parent.iterdir()] == [".s.lock"]


def test_a_new_socket_folder_lets_all_users_pass(folder: Path) -> None:
    made = folder / "outer" / "made"
    before = os.umask(0o077)
    try:
        prepare_folder(str(made))
    finally:
        os.umask(before)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (made, made.parent)] == [0o711, 0o755]


def test_living_server_keeps_its_socket(folder: Path) -> None:
    path, listener = folder / "s", Listener()
    with listener.socket:
        listener(str(path))
        with pytest.raises(ServerError, match="another server listens there"):
            SocketFile(str(path), SocketRights())
        assert connects(path)


def test_second_server_of_ours_is_refused_before_the_first_listens(folder: Path) -> None:
    first = SocketFile(str(folder / "s"), SocketRights())
    with pytest.raises(ServerError, match="another imagestore server"):
        SocketFile(str(folder / "s"), SocketRights())
    first.close()
    SocketFile(str(folder / "s"), SocketRights()).close()


def test_socket_of_a_dead_server_is_replaced(folder: Path) -> None:
    path, dead = folder / "s", Listener()
    dead(str(path))
    dead.socket.close()
    assert not connects(path)
    listener = Listener()
    with listener.socket:
        file = SocketFile(str(path), SocketRights())
        file.bind(listener)
        assert connects(path)
        file.close()
    assert not path.exists()


def test_other_files_are_not_replaced(folder: Path) -> None:
    path = folder / "s"
    path.write_text("precious")
    with pytest.raises(ServerError, match="found another kind of file"):
        SocketFile(str(path), SocketRights())
    assert path.read_text() == "precious"


def test_socket_that_became_anothers_is_left_alone(folder: Path) -> None:
    path, ours, theirs = folder / "s", Listener(), Listener()
    with ours.socket, theirs.socket:
        file = SocketFile(str(path), SocketRights())
        file.bind(ours)
        path.unlink()
        theirs(str(path))
        file.close()
        assert connects(path)


def test_folder_that_other_users_can_write_is_refused(folder: Path) -> None:
    open_folder = folder / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    with pytest.raises(ServerError, match="all users may write"):
        prepare_folder(str(open_folder))
    open_folder.chmod(0o1777)
    prepare_folder(str(open_folder))


def test_folder_of_another_user_is_refused(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(folder, 12345, -1)
    with pytest.raises(ServerError, match="user 12345 owns it"):
        prepare_folder(str(folder))


def test_failed_listening_leaves_nothing(folder: Path) -> None:
    file = SocketFile(str(folder / "s"), SocketRights())

    def fail(path: str) -> None:
        raise ServerError(f"socket {path}: no")

    with pytest.raises(ServerError):
        file.bind(fail)
    file.close()
    assert [each.name for each in folder.iterdir()] == [".s.lock"]
