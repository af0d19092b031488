"""Which work of a store makes a copy of its records, and which doesn't."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore import ImageStore
from imagestore.store.workers import StoreWorkers
from imagestore.testing import build_index
from tests.support.node import PYTHON, Node, node, python_image
from tests.unit.store.test_upkeep import OTHER

TAG = "registry.example/other:tag"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    images = {PYTHON: python_image(), OTHER: build_index(["linux/amd64"], seed="other")}
    with node(tmp_path / "store", images) as opened:
        yield opened


def copies(store: ImageStore) -> int:
    return len(list((store.root / "copies").glob("*.db")))


@pytest.mark.parametrize("how", ["pull", "tag", "pin"])
def test_what_names_an_image_makes_one_when_an_hour_is_over(here: Node, how: str) -> None:
    here.store.pull(PYTHON, runtime_handler="kata")
    assert copies(here.store) == 1
    for path in (here.store.root / "copies").iterdir():
        path.unlink()
    match how:
        case "pull":
            here.store.pull(OTHER, runtime_handler="kata")
        case "tag":
            here.store.tag(PYTHON, TAG, runtime_handler="kata")
        case _:
            here.store.pin(PYTHON, runtime_handler="kata")
    assert copies(here.store) == 1
    here.store.tag(PYTHON, "registry.example/soon:1", runtime_handler="kata")
    assert copies(here.store) == 1, "too soon"


def test_an_import_makes_one_at_once(here: Node, tmp_path: Path) -> None:
    here.store.pull(PYTHON)
    here.store.export_images([PYTHON], tmp_path / "saved.tar")
    here.store.remove(PYTHON)
    before = copies(here.store)
    here.store.import_images(tmp_path / "saved.tar")
    assert copies(here.store) == before + 1


def test_what_removes_makes_none(here: Node) -> None:
    here.store.pull(PYTHON, runtime_handler="kata")
    here.store.tag(PYTHON, TAG, runtime_handler="kata")
    here.store.pull(OTHER, runtime_handler="kata")
    for path in (here.store.root / "copies").iterdir():
        path.unlink()
    here.store.untag(TAG, runtime_handler="kata")
    here.store.remove(OTHER, runtime_handler="kata")
    here.store.remove(PYTHON, runtime_handler="kata", collect=True)
    here.store.collect_garbage()
    here.store.close()
    assert copies(here.store) == 0


def test_a_server_makes_one_when_it_ends(here: Node) -> None:
    here.store.pull(PYTHON, runtime_handler="kata")
    with ImageStore(here.store.root) as store:
        workers = StoreWorkers(store)
        store.remove(PYTHON, runtime_handler="kata")
        workers.close()
    assert copies(here.store) == 2
