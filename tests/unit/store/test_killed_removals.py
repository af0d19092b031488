"""A removal whose process dies before its line in the journal stays one, also when the database is rebuilt."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from imagestore import Digest, ImageStore
from imagestore.metadata.sqlite.changes import ChangeLog
from imagestore.metadata.sqlite.journal import RecordJournal
from imagestore.store.maintenance.rebuild import rebuild
from imagestore.testing import build_index
from tests.support.node import PYTHON, node, python_image
from tests.unit.store.test_upkeep import OTHER, damage_database

THIRD = "registry.example/library/third:1"
LEASED = Digest.of(b"leased")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    images = {PYTHON: python_image(), **{name: build_index(["linux/amd64"], seed=name) for name in (OTHER, THIRD)}}
    root = tmp_path / "store"
    with node(root, images) as here:
        for name in images:
            here.store.pull(name, runtime_handler="kata")
        here.store.metadata.leases.create("lasting", lifetime_seconds=1e9, content=[LEASED])
    return root


def change(store: ImageStore, how: str) -> None:
    if how == "remove":
        store.remove(OTHER, runtime_handler="kata")
    elif how == "many":
        store.delete_each([OTHER, "nothing:1"], runtime_handler="kata")
    elif how == "all":
        store.metadata.leases.create("work", lifetime_seconds=60, content=[i.digest for i in store.content.walk()])
        store.delete_each([PYTHON, OTHER, THIRD], runtime_handler="kata")
    elif how == "release":
        store.metadata.leases.delete("lasting")
    else:
        store.metadata.leases.remove_content("lasting", [LEASED])


def state(root: Path) -> tuple[set[str], dict[str, int]]:
    with ImageStore(root) as store:
        lasting = [lease.id for lease in store.metadata.leases.find() if lease.id == "lasting"]
        leased = {each: len(store.metadata.leases.content(each)) for each in lasting}
        return {image.reference for image in store.list()}, leased


@pytest.mark.parametrize("how", ["remove", "many", "all", "release", "unlease"])
def test_a_removal_that_dies_before_its_line_does_not_come_back(
    root: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with monkeypatch.context() as patch, ImageStore(root) as store:
        patch.setattr(ChangeLog, "write", lambda *_: None)
        change(store, how)
    expected = state(root)
    with ImageStore(root) as store:  # any change that follows
        store.metadata.leases.create("another", lifetime_seconds=1e9)
    damage_database(root)
    rebuild(root)
    assert state(root) == expected


@pytest.mark.parametrize("how", ["remove", "many", "all", "release", "unlease"])
def test_a_whole_database_gets_nothing_back_that_was_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It says itself that the last change was committed."""
    with monkeypatch.context() as patch, ImageStore(root) as store:
        patch.setattr(ChangeLog, "write", lambda *_: None)
        change(store, how)
    expected = state(root)
    report = rebuild(root)
    assert (report.was_whole, report.restored, report.leases) == (True, (), ())
    assert state(root) == expected


@pytest.mark.parametrize("is_followed", [True, False])
@pytest.mark.parametrize("how", ["remove", "release"])
def test_a_removal_that_dies_before_its_commit_is_none(root: Path, how: str, is_followed: bool) -> None:
    expected = state(root)
    with ImageStore(root) as store:
        try:
            with store.metadata.exclusive():
                change(store, how)
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        if is_followed:
            store.metadata.leases.create("another", lifetime_seconds=1e9)
    damage_database(root)
    rebuild(root)
    assert state(root) == expected


def test_a_journal_with_room_for_nothing_but_a_transactions_begin_is_no_reason_to_keep_an_image(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RecordJournal.append

    def refuse_announced(journal: RecordJournal, entries: Iterable[str]) -> None:
        listed = list(entries)
        if any("announced" in entry for entry in listed):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(journal, listed)

    monkeypatch.setattr(RecordJournal, "append", refuse_announced)
    with ImageStore(root) as store:
        change(store, "remove")
    damage_database(root)
    rebuild(root)
    assert state(root)[0] == {PYTHON, THIRD}
