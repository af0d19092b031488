"""What is unfinished has a temporary name, and is nobody else's."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from imagestore.errors import AlreadyExistsError, InvalidInputError, PreconditionError
from imagestore.util import partial
from imagestore.util.partial import new_file, new_folder


def leftover(folder: Path) -> Path:
    """What a killed writer left, or a folder that was given such a name."""
    found = folder / "box.0123456789ab.partial"
    (found / "inner").mkdir(parents=True)
    (found / "inner/file").write_text("x")
    os.utime(found, (1, 1))
    return found


@pytest.mark.parametrize(("mode", "is_removed"), [(0o755, True), (0o1777, True), (0o777, False), (0o775, False)])
def test_leftovers_go_where_nobody_else_can_have_named_them(tmp_path: Path, mode: int, is_removed: bool) -> None:
    left = leftover(tmp_path)
    tmp_path.chmod(mode)
    with new_folder(str(tmp_path / "box")):
        pass
    assert left.exists() is not is_removed
    assert (tmp_path / "box").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
@pytest.mark.parametrize("is_sticky", [True, False])
def test_leftovers_stay_in_the_folder_of_another_user(tmp_path: Path, is_sticky: bool) -> None:
    left = leftover(tmp_path)
    tmp_path.chmod(0o1755 if is_sticky else 0o755)
    os.chown(tmp_path, 1000, 1000)
    with new_folder(str(tmp_path / "box")), new_file(str(tmp_path / "box.tar")):
        pass
    assert (left / "inner/file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_an_empty_folder_of_another_user_is_not_taken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach(place: str) -> None:
        if place == "partial-open":
            (made,) = tmp_path.iterdir()
            os.chown(made, 1000, 1000)

    monkeypatch.setattr(partial, "reach", reach)
    with pytest.raises(PreconditionError, match="another user exchanged"), new_folder(str(tmp_path / "box")):
        pass
    (left,) = tmp_path.iterdir()
    assert list(left.iterdir()) == []


def test_a_file_system_that_gives_all_files_to_one_user_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS with root_squash, vfat: what we make isn't ours."""
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with new_folder(str(tmp_path / "box")) as descriptor:
        assert os.listdir(descriptor) == []
    assert (tmp_path / "box").is_dir()


@pytest.mark.parametrize("path", ["/", "/proc/self/fd", "{here}", "{here}/file", "{here}/link"])
def test_a_new_folder_replaces_nothing_but_an_empty_one(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("none")
    before = sorted(each.name for each in tmp_path.iterdir())
    with pytest.raises(AlreadyExistsError, match="expected nothing or an empty folder"):
        new_folder(path.format(here=tmp_path)).__enter__()
    assert sorted(each.name for each in tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["none/box", "file/box", "x" * 300, "a\0b", "\ud800"])
@pytest.mark.parametrize("make", [new_folder, new_file])
def test_places_that_can_not_be_have_our_own_error(tmp_path: Path, make: type, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInputError, match=r"can't be written|expected a path"):
        make(f"{tmp_path}/{name}").__enter__()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_folders_that_their_owner_may_not_write_are_removed(tmp_path: Path) -> None:
    with contextlib.suppress(KeyError), new_folder(str(tmp_path / "box")) as descriptor:
        os.mkdir("closed", dir_fd=descriptor)
        os.mkdir("closed/inner", dir_fd=descriptor)
        os.symlink("/", "closed/link", dir_fd=descriptor)
        os.chmod("closed", 0, dir_fd=descriptor)
        os.fchmod(descriptor, 0o500)
        raise KeyError
    assert list(tmp_path.iterdir()) == []
