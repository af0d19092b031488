"""A file that a user names is a regular one and bounded: a FIFO or a device in its place is refused at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from imagestore import config as configuration
from imagestore.cri import crictl
from imagestore.errors import ConfigError
from imagestore.util import files
from imagestore.util.yaml_documents import read_documents


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # a socket's path has at most 107 bytes
    return Path("file")


def test_a_file_of_more_bytes_than_allowed_is_refused(place: Path) -> None:
    place.write_bytes(b"abc")
    assert [files.read_regular(place, limit) for limit in (3, 4)] == [b"abc", b"abc"]
    with pytest.raises(files.TooLongError, match="expected at most 2 bytes, found more"):
        files.read_regular(place, 2)
    files.check_regular(place)


def test_links_to_regular_files_are_followed(place: Path) -> None:
    place.symlink_to("target")
    Path("target").write_bytes(b"abc")
    assert files.read_regular(place, 9) == b"abc"


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (os.mkfifo, "expected a regular file, found a FIFO"),
        (a_socket, "No such device or address|found a socket"),
        (os.mkdir, "Is a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "expected a regular file, found a device"),
        (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
    ],
)
def test_what_is_no_regular_file_is_refused_and_named(place: Path, make: Callable[[Path], None], found: str) -> None:
    make(place)
    for look in (lambda: files.read_regular(place, 9), lambda: files.check_regular(place)):
        with pytest.raises(OSError, match=found):
            look()


def imported(path: Path) -> object:
    main = Path("main.toml")
    main.write_text(f'version = 3\nimports = ["{path.absolute()}"]\n')
    return configuration.load(main)


@pytest.mark.parametrize("read", [configuration.load, imported, read_documents, lambda path: crictl.find({}, path)])
def test_configurations_are_not_waited_for(place: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(place)
    with pytest.raises(ConfigError, match="expected a regular file, found a FIFO"):
        read(place)
