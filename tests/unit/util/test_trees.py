"""Trees are removed and walked through with bounded memory, never through links, and stop when they are told to."""

from __future__ import annotations

import os
import stat
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.util.trees import Choice, prune, remove_content, remove_folder


@pytest.fixture
def top(tmp_path: Path) -> Iterator[int]:
    """A folder ``top`` next to other things, open."""
    (tmp_path / "top").mkdir()
    (tmp_path / "beside").write_text("stays")
    descriptor = os.open(tmp_path / "top", os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def make(root: Path, *paths: str) -> None:
    for path in paths:
        place = root / "top" / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            place.write_text(path)


def paths_in(root: Path) -> set[str]:
    return {str(each.relative_to(root / "top")) for each in (root / "top").rglob("*")}


def test_all_below_a_folder_goes_and_what_links_mean_stays(tmp_path: Path, top: int) -> None:
    make(tmp_path, "a", "b/c/d", "b/e/", "f/")
    (tmp_path / "top/b/link").symlink_to(tmp_path / "beside")
    (tmp_path / "top/folder-link").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "top/fifo")
    remove_content(top)
    assert paths_in(tmp_path) == set()
    assert (tmp_path / "beside").read_text() == "stays"


def test_a_folder_goes_with_all_below_it(tmp_path: Path, top: int) -> None:
    make(tmp_path, "a/b/c", "b")
    remove_folder(top, "a")
    assert paths_in(tmp_path) == {"b"}


@pytest.mark.parametrize("mode", [0o000, 0o500, 0o300])
def test_folders_that_shut_out_their_owner_go(tmp_path: Path, top: int, mode: int) -> None:
    make(tmp_path, "a/b/c", "a/d")
    (tmp_path / "top/a/b").chmod(mode)
    (tmp_path / "top/a").chmod(mode)
    remove_folder(top, "a")
    assert paths_in(tmp_path) == set()


def test_what_is_kept_or_entered_stays_and_keeps_its_times(tmp_path: Path, top: int) -> None:
    make(tmp_path, "keep/a", "enter/keep", "enter/gone", "enter/gone-folder/x", "enter/in/gone", "gone/x", "file")
    for name in ("keep", "enter", "enter/in", "."):
        os.utime(tmp_path / "top" / name, (7, 7))
    choices = {"keep": Choice.KEEP, "enter": Choice.ENTER, "enter/keep": Choice.KEEP, "enter/in": Choice.ENTER}
    left: list[str] = []
    prune(
        top,
        lambda path: Choice.ENTER if path == "file" else choices.get(path, Choice.REMOVE),
        on_leaving=lambda _, path: left.append(path),
    )
    status = [os.stat(tmp_path / "top" / name) for name in ("keep", "enter", "enter/in", ".")]
    assert {(each.st_atime, each.st_mtime) for each in status} == {(7, 7)}
    assert paths_in(tmp_path) == {"keep", "keep/a", "enter", "enter/keep", "enter/in", "file"}
    assert left == ["enter/in", "enter", ""]


def test_each_folder_is_read_as_often_however_deep_it_is(tmp_path: Path, top: int) -> None:
    make(tmp_path, *("d/" * depth + name for depth in range(20) for name in ("keep", "gone")))
    asked: dict[str, int] = {}

    def _choose(path: str) -> Choice:
        asked[path] = asked.get(path, 0) + 1
        return Choice.REMOVE if path.endswith("gone") else Choice.ENTER

    prune(top, _choose)
    assert not any(path.endswith("gone") for path in paths_in(tmp_path))
    assert max(asked.values()) <= 2


def test_the_deepest_tree_takes_one_descriptor_for_each_folder(tmp_path: Path, top: int) -> None:
    above = os.dup(top)
    for _ in range(600):
        os.mkdir("d", dir_fd=above)
        inner = os.open("d", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = inner
    os.close(above)
    most = 0

    def _count() -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))

    before = len(os.listdir("/proc/self/fd"))
    remove_content(top, check=_count)
    assert paths_in(tmp_path) == set()
    assert most - before < 610
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_does_not_grow_with_the_names_of_a_folder(tmp_path: Path, top: int) -> None:
    for number in range(2000):
        os.close(os.open(f"{number:0>200}", os.O_CREAT | os.O_WRONLY, dir_fd=top))
    tracemalloc.start()
    try:
        remove_content(top)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert paths_in(tmp_path) == set()


def test_a_check_that_raises_ends_the_work(tmp_path: Path, top: int) -> None:
    make(tmp_path, *(f"a/{number}" for number in range(50)))
    left = 10

    def _check() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise InterruptedError

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InterruptedError):
        remove_content(top, check=_check)
    assert len(paths_in(tmp_path)) > 40
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_is_moved_away_meanwhile_is_no_way_out(tmp_path: Path, top: int) -> None:
    make(tmp_path, "a/b/c")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/b").write_text("stays")

    def _check() -> None:
        if (tmp_path / "top/a/b").exists() and not (tmp_path / "top/a/b/c").exists():
            (tmp_path / "top/a/b").rename(tmp_path / "elsewhere/moved")

    with pytest.raises(OSError, match="moved while it was read"):
        remove_content(top, check=_check)
    assert (tmp_path / "elsewhere/b").read_text() == "stays"


def test_what_can_not_be_removed_is_named(tmp_path: Path, top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/b")

    def _refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(os, "unlink", _refuse)
    with pytest.raises(PermissionError) as refused:
        remove_content(top)
    assert refused.value.filename == "a/b"
    assert stat.S_ISREG(os.stat(tmp_path / "top/a/b").st_mode)
