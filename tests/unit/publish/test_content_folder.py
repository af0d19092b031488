"""Files in containerd's content folder: how they come there, and that nothing else is touched."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from imagestore import CancelToken, Descriptor, Digest
from imagestore.oci.media_types import OCI_LAYER
from imagestore.publish import ContentWay
from imagestore.publish.content_folder import ContentFolder

DATA = b"a layer" * 10_000
DIGEST = Digest.of(DATA)
BLOB = Descriptor(OCI_LAYER, DIGEST, len(DATA))
OWNER = "0a" * 16
WAYS = [ContentWay.LINKED, ContentWay.OWN_FILE]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "ours"
    path.write_bytes(DATA)
    path.chmod(0o444)
    return path


@pytest.fixture(params=WAYS, ids=lambda way: way.name)
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> ContentFolder:
    root = tmp_path / "content"
    root.mkdir()
    return ContentFolder(root, request.param, OWNER)


def names(folder: ContentFolder) -> list[str]:
    """Every file's path."""
    return sorted(str(each.relative_to(folder.root)) for each in folder.root.rglob("*") if each.is_file())


def refusing(number: int) -> Callable[..., int]:
    def _refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return _refuse


def test_a_file_is_placed_before_containerd_made_its_folders(folder: ContentFolder, source: Path) -> None:
    assert folder.size(DIGEST) is None
    assert folder.place(source, DIGEST)
    assert names(folder) == [f"blobs/sha256/{DIGEST.encoded}"]
    path = folder.path(DIGEST)
    assert path.read_bytes() == DATA
    assert folder.size(DIGEST) == len(DATA)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert path.samefile(source) is (folder.way is ContentWay.LINKED)
    assert folder.is_same_file(source, DIGEST) is (folder.way is ContentWay.LINKED)


def test_a_name_that_is_there_stays(folder: ContentFolder, source: Path) -> None:
    path = folder.path(DIGEST)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"theirs")
    assert not folder.place(source, DIGEST)
    assert path.read_bytes() == b"theirs"


def test_a_name_that_comes_meanwhile_stays(
    folder: ContentFolder, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(_: str) -> None:
        folder.path(DIGEST).write_bytes(b"theirs")

    monkeypatch.setattr("imagestore.publish.content_folder.reach", another)
    assert not folder.place(source, DIGEST)
    assert folder.path(DIGEST).read_bytes() == b"theirs"


def test_a_folder_that_is_not_there_is_not_made(folder: ContentFolder, source: Path) -> None:
    folder.root.rmdir()
    with pytest.raises(FileNotFoundError):
        folder.place(source, DIGEST)
    assert not folder.root.exists()


def test_a_file_of_the_store_that_is_gone(folder: ContentFolder, source: Path) -> None:
    source.unlink()
    with pytest.raises(FileNotFoundError):
        folder.place(source, DIGEST)
    assert names(folder) == []


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_systems_of_two_kinds(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The kernel copies ranges only within one kind (copy_file_range(2), since 5.19)."""
    monkeypatch.setattr(os, "copy_file_range", refusing(number))
    (tmp_path / "content").mkdir()
    folder = ContentFolder(tmp_path / "content", ContentWay.OWN_FILE, OWNER)
    assert folder.place(source, DIGEST)
    assert folder.path(DIGEST).read_bytes() == DATA


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_copy_that_fails_leaves_nothing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("imagestore.publish.content_folder.reflink", lambda *_: False)
    monkeypatch.setattr(os, "copy_file_range", refusing(number))
    (tmp_path / "content").mkdir()
    folder = ContentFolder(tmp_path / "content", ContentWay.OWN_FILE, OWNER)
    with pytest.raises(OSError, match=os.strerror(number)):
        folder.place(source, DIGEST)
    assert names(folder) == []


def test_a_file_system_without_nameless_files(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def without(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no")
        return opened(path, flags, mode)

    monkeypatch.setattr("imagestore.publish.content_folder.os.open", without)
    (tmp_path / "content").mkdir()
    folder = ContentFolder(tmp_path / "content", ContentWay.OWN_FILE, OWNER)
    assert folder.place(source, DIGEST)
    assert folder.path(DIGEST).read_bytes() == DATA
    assert names(folder) == [f"blobs/sha256/{DIGEST.encoded}"]


def test_a_damaged_file_is_replaced(folder: ContentFolder, source: Path) -> None:
    path = folder.path(DIGEST)
    path.parent.mkdir(parents=True)
    assert not folder.is_damaged(BLOB, CancelToken())
    path.write_bytes(DATA[:-1] + b"!")
    assert folder.is_damaged(BLOB, CancelToken())
    with open(path, "rb") as reader:
        folder.replace(source, DIGEST)
        # Who reads the old one is not disturbed.
        assert reader.read() != DATA
    assert path.read_bytes() == DATA
    assert not folder.is_damaged(BLOB, CancelToken())
    assert names(folder) == [f"blobs/sha256/{DIGEST.encoded}"]
    # Once more, with a file that may be the same one.
    folder.replace(source, DIGEST)
    assert names(folder) == [f"blobs/sha256/{DIGEST.encoded}"]


def test_a_replacement_that_fails_leaves_the_old_file(
    folder: ContentFolder, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.path(DIGEST).parent.mkdir(parents=True)
    folder.path(DIGEST).write_bytes(b"old")
    monkeypatch.setattr(os, "rename", refusing(errno.EROFS))
    with pytest.raises(OSError, match="Read-only"):
        folder.replace(source, DIGEST)
    assert folder.path(DIGEST).read_bytes() == b"old"
    assert names(folder) == [f"blobs/sha256/{DIGEST.encoded}"]


def test_only_leftovers_of_this_store_are_cleared(folder: ContentFolder, source: Path) -> None:
    folder.place(source, DIGEST)
    number = "1" * 16
    ours = f"imagestore-{OWNER}-{number}"
    others = [f"imagestore-{'0b' * 16}-{number}", f"imagestore-{OWNER}-x", "ingest", f"{ours}.more"]
    for name in (ours, *others):
        (folder.root / name).write_bytes(b"")
    folder.clear()
    assert names(folder) == sorted([f"blobs/sha256/{DIGEST.encoded}", *others])


class Looks:
    """What containerd says of a probe, in turn; and what it does to the file before."""

    def __init__(self, folder: ContentFolder, *answers: bool, collects: int = 0) -> None:
        self._folder = folder
        self._answers = list(answers)
        self._collects = collects
        self.seen = 0

    def __call__(self, digest: Digest, size: int) -> bool:
        self.seen += 1
        path = self._folder.path(digest)
        assert path.stat().st_size == size
        if self._collects:
            self._collects -= 1
            path.unlink()
        return self._answers.pop(0)


def test_a_probe_that_containerd_sees(folder: ContentFolder, tmp_path: Path) -> None:
    assert folder.probe(tmp_path, Looks(folder, True)) == ""
    assert names(folder) == []
    assert [each.name for each in tmp_path.iterdir()] == ["content"]


def test_a_probe_that_the_collector_takes_is_tried_again(folder: ContentFolder, tmp_path: Path) -> None:
    looks = Looks(folder, False, False, True, collects=2)
    assert folder.probe(tmp_path, looks) == ""
    assert looks.seen == 3
    looks = Looks(folder, *[False] * 5, collects=5)
    assert "collector" in folder.probe(tmp_path, looks)


def test_a_probe_that_containerd_does_not_see(folder: ContentFolder, tmp_path: Path) -> None:
    assert "doesn't take" in folder.probe(tmp_path, Looks(folder, False))
    assert names(folder) == []


def test_a_probe_without_a_folder(folder: ContentFolder, tmp_path: Path) -> None:
    folder.root.rmdir()
    assert "No such file" in folder.probe(tmp_path, Looks(folder))


def test_a_probe_whose_question_fails_leaves_nothing(folder: ContentFolder, tmp_path: Path) -> None:
    def fails(*_: object) -> bool:
        raise InterruptedError

    assert folder.probe(tmp_path, fails) != ""
    assert names(folder) == []
    assert [each.name for each in tmp_path.iterdir()] == ["content"]
