"""Files that other programs read while they are written."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from imagestore.errors import InvalidInputError
from imagestore.util.files import write_whole


def test_a_reader_of_the_old_file_keeps_its_whole_content(tmp_path: Path) -> None:
    path = tmp_path / "node.prom"
    path.write_text("old 1\n")
    with path.open() as reader:
        write_whole(path, b"new 1\n")
        assert reader.read() == "old 1\n"
    assert (path.read_text(), os.listdir(tmp_path)) == ("new 1\n", ["node.prom"])


def test_the_temporary_name_is_hidden_and_has_another_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    replace = os.replace

    def watched(source: str, target: str) -> None:
        names.extend(os.listdir(tmp_path))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    write_whole(tmp_path / "node.prom", b"")
    assert len(names) == 1
    assert names[0].startswith(".node.prom.")
    assert names[0].endswith(".tmp")


def test_mode_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert ((tmp_path / "real").read_text(), (tmp_path / "real").stat().st_mode & 0o777) == ("new", 0o640)


def test_a_new_file_is_made_as_the_umask_says(tmp_path: Path) -> None:
    write_whole(tmp_path / "new", b"new")
    (tmp_path / "other").write_text("")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(path.read_bytes()))
    reader.start()
    write_whole(path, b"metrics 1\n")
    reader.join()
    assert (heard, path.is_fifo()) == ([b"metrics 1\n"], True)


def test_the_name_of_an_open_file_means_that_file(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w+") as file:
        write_whole(f"/dev/fd/{file.fileno()}", b"new")
        assert file.read() == "new"


@pytest.mark.parametrize("name", ["missing/node.prom", "folder"])
def test_what_cannot_be_written_is_named_and_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInputError, match=rf"^{tmp_path}/{name}: can't be written: "):
        write_whole(tmp_path / name, b"new")
    assert os.listdir(tmp_path) == ["folder"]


def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "node.prom"
    path.write_text("old")

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(Exception, match="No space left"):
        write_whole(path, b"new")
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["node.prom"])
