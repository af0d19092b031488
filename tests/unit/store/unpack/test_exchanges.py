"""The owner of the folder above exchanges what root makes there, at each step: nothing outside changes.

Where the path leads to something else in the end, that is an error, and never the system's own.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagestore import ImageStore
from imagestore.errors import ImageStoreError, PreconditionError
from imagestore.store.archive.contents import ArchiveFormat
from imagestore.store.archive.exporting import ExportOptions
from imagestore.store.unpack import apply, layer, metadata, tree
from imagestore.store.unpack import unpack as unpacking
from imagestore.store.unpack.bundle import BundleOptions
from imagestore.util import partial
from tests.unit.store.unpack.making import IS_ROOTLESS, REFERENCE, entry, folder, made, stored

ACCOUNTS = b"root:x:0:0:::\n"
LAYER = made(folder("./", mode=0o755), folder("etc"), entry("etc/passwd", data=ACCOUNTS), entry("file", data=b"image"))
#: In the order in which they come.
PLACES = ["partial-make", "partial-open", "bundle-rootfs", "bundle-config", "partial-rename", "partial-renamed"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageStore]:
    with stored(tmp_path_factory.mktemp("exchanges"), LAYER, config={"config": {"Cmd": ["/file"]}}) as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def victim(home: Path) -> Path:
    """A closed folder that its owner's neighbour can rename, since the folder above is his."""
    made = home / "victim"
    made.mkdir(mode=0o700)
    for name in ("secret", "config.json"):
        (made / name).write_text("precious")
    (made / "rootfs").mkdir(mode=0o711)
    return made


def is_as_it_was(victim: Path) -> bool:
    names = sorted(os.listdir(victim))
    texts = {(victim / name).read_text() for name in ("secret", "config.json")}
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (victim, victim / "rootfs")]
    is_empty = os.listdir(victim / "rootfs") == []
    return (names, texts, modes, is_empty) == (["config.json", "rootfs", "secret"], {"precious"}, [0o700, 0o711], True)


def moved_aside(path: Path) -> bool:
    """Whether there was anything to move."""
    if not os.path.lexists(path):
        return False
    path.rename(path.with_name(f"aside-{path.name}"))
    return True


def by_link(path: Path, victim: Path) -> None:
    if moved_aside(path):
        path.symlink_to(victim)


def by_own_folder(path: Path, victim: Path) -> None:
    if moved_aside(path):
        (path / "rootfs/etc").mkdir(parents=True)
        (path / "rootfs/etc/passwd").write_text("root:x:0:7:::\n")
        (path / "config.json").symlink_to(victim / "config.json")


def by_victim(path: Path, victim: Path) -> None:
    if moved_aside(path):
        victim.rename(path)


def by_removal(path: Path, _victim: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def by_moving(path: Path, _victim: Path) -> None:
    moved_aside(path)


def by_moving_the_folder_above(path: Path, victim: Path) -> None:
    """And a link to another one in its place, which has the same names."""
    above = path.parent
    victim.rename(above.with_name("victim"))
    above.rename(above.with_name("aside"))
    above.mkdir()
    (above / "box").symlink_to(above.with_name("victim"))
    above.with_name("victim").rename(above / "victim")


Exchange = Callable[[Path, Path], None]
WAYS: list[Exchange] = [by_link, by_own_folder, by_victim, by_removal, by_moving, by_moving_the_folder_above]


def exchange_at(monkeypatch: pytest.MonkeyPatch, place: str, exchange: Exchange, home: Path, victim: Path) -> list[str]:
    """Let it happen once, when the place is reached; returns the places that were reached."""
    reached: list[str] = []

    def reach(name: str) -> None:
        reached.append(name)
        if name == place and reached.count(name) == 1:
            named = [each for each in home.iterdir() if each.name.endswith(".partial")]
            exchange(named[0] if named else home / "box", victim)

    for module in (partial, unpacking):
        monkeypatch.setattr(module, "reach", reach)
    return reached


def found_victim(home: Path) -> Path:
    """Wherever it was moved."""
    (secret,) = home.parent.rglob("secret")
    return secret.parent


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
def test_an_exchange_during_a_bundle_changes_nothing_outside(
    store: ImageStore, home: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, place: str, way: Exchange
) -> None:
    reached = exchange_at(monkeypatch, place, way, home, victim)
    try:
        store.unpack(REFERENCE, home / "box", bundle=BundleOptions(), rootless=IS_ROOTLESS)
    except ImageStoreError:
        pass
    else:
        # Before anything is there, there is nothing to exchange.
        assert (place, way is by_moving_the_folder_above) == ("partial-make", False)
        assert (home / "box/rootfs/file").read_text() == "image"
    assert place in reached
    assert is_as_it_was(found_victim(home))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["partial-open", "partial-rename", "partial-renamed"])
@pytest.mark.parametrize("form", ["tree", "layout", "archive"])
def test_success_is_never_reported_of_what_others_put_there(
    store: ImageStore, home: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, place: str, way: Exchange, form: str
) -> None:
    reached = exchange_at(monkeypatch, place, way, home, victim)
    try:
        if form == "tree":
            store.unpack(REFERENCE, home / "box", rootless=IS_ROOTLESS)
        else:
            kind = ArchiveFormat.OCI_FOLDER if form == "layout" else ArchiveFormat.OCI_ARCHIVE
            store.export_images([REFERENCE], home / "box", options=ExportOptions(format=kind))
    except PreconditionError as error:
        assert "another user exchanged, moved or removed it" in str(error)
        assert "where only you can write" in error.hint
    else:
        # Of a file there is no moment between making and opening it.
        assert (place in reached, form) == (False, "archive")
    assert is_as_it_was(found_victim(home))


@pytest.mark.parametrize("way", [by_link, by_own_folder, by_victim, by_moving])
def test_a_tree_that_was_moved_aside_is_emptied(
    store: ImageStore, home: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, way: Exchange
) -> None:
    exchange_at(monkeypatch, "partial-rename", way, home, victim)
    with pytest.raises(PreconditionError):
        store.unpack(REFERENCE, home / "box", bundle=BundleOptions(), rootless=IS_ROOTLESS)
    (aside,) = home.glob("aside-*")
    assert list(aside.iterdir()) == []


def test_what_is_whole_stays_where_the_folder_above_was_moved_to(
    store: ImageStore, home: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange_at(monkeypatch, "bundle-config", by_moving_the_folder_above, home, victim)
    with pytest.raises(PreconditionError, match="or a folder above it"):
        store.unpack(REFERENCE, home / "box", bundle=BundleOptions(), rootless=IS_ROOTLESS)
    assert sorted(each.name for each in (home.parent / "aside/box").iterdir()) == ["config.json", "rootfs"]


class FailingSystem:
    """The module ``os`` of some modules, one of whose calls fails.

    Attributes:
        calls: how many have been made.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: object) -> None:
        self.calls = 0
        self._fails_at = 0
        for module in modules:
            monkeypatch.setattr(module, "os", self)

    def fail_at(self, number: int) -> None:
        """Let this call fail, counted from now on."""
        self.calls, self._fails_at = 0, number

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if not isinstance(found, types.BuiltinFunctionType) or name in ("close", "fspath", "getpid", "makedev"):
            return found

        def call(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self._fails_at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return found(*given, **named)

        return call


def test_every_error_of_the_system_is_told_as_ours_and_leaves_nothing_unfinished(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = BundleOptions()
    system = FailingSystem(monkeypatch, unpacking, partial, tree, apply, metadata, layer)
    store.unpack(REFERENCE, tmp_path / "box0", bundle=options, rootless=True)
    number, last, failures = 0, system.calls, 0
    while number < last:
        number += 1
        folder = tmp_path / f"box{number}"
        system.fail_at(number)
        try:
            store.unpack(REFERENCE, folder, bundle=options, rootless=True)
        except ImageStoreError:
            failures += 1
        # What fails behind the rename is the look at what the name leads to.
        assert not folder.exists() or (folder / "config.json").exists()
        assert list(tmp_path.glob("*.partial")) == []
    assert failures > 30
