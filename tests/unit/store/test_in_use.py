"""Images that containers use are spared by every policy, until the note ends; a removal is obeyed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore import EvictionPolicy, ImageStore
from imagestore.content import Disk, local
from imagestore.store.in_use import IN_USE_SECONDS
from tests.support.node import HOST, HYPERV, PROCESS, PYTHON, Node, node
from tests.unit.metadata.keeping import Clock

POLICIES = {
    "by number": EvictionPolicy(keep_last=0),
    "by age": EvictionPolicy(unused_seconds=0),
    "by space": EvictionPolicy(high_percent=1, low_percent=0),
}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path) as here:
        for handler in (PROCESS, HYPERV):
            here.store.pull(PYTHON, runtime_handler=handler)
        yield here


def left(store: ImageStore) -> list[str]:
    return sorted(image.runtime_handler for image in store.list())


def image_id(here: Node, handler: str) -> str:
    return str(here.store.get(PYTHON, runtime_handler=handler).id)


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_evicts_what_is_in_use(here: Node, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "disk_of", lambda _: Disk(1000, 10))
    noted = here.store.note_in_use([(image_id(here, HYPERV), HYPERV)], holder="test")
    assert noted == ((PYTHON, HYPERV),)
    assert [each.record.handler for each in here.store.evict(POLICIES[name], dry_run=True).evicted] == [PROCESS]
    assert [each.record.handler for each in here.store.evict(POLICIES[name]).evicted] == [PROCESS]
    assert left(here.store) == [HYPERV]


def test_without_a_handler_the_image_is_in_use_under_every_one(here: Node) -> None:
    here.store.tag(PYTHON, "registry.example/further:1", runtime_handler=HYPERV)
    noted = here.store.note_in_use([(image_id(here, HYPERV), ""), ("sha256:absent", "")], holder="test")
    assert noted == (("registry.example/further:1", HYPERV), (PYTHON, HYPERV))


def test_the_next_note_takes_the_place_of_the_one_before(here: Node) -> None:
    here.store.note_in_use([(image_id(here, each), each) for each in (HYPERV, PROCESS)], holder="test")
    here.store.note_in_use([(image_id(here, HYPERV), HYPERV)], holder="test")
    here.store.note_in_use([(image_id(here, PROCESS), PROCESS)], holder="other")
    assert here.store.evict(POLICIES["by age"]).evicted == ()
    here.store.note_in_use([], holder="other")
    here.store.evict(POLICIES["by age"])
    assert left(here.store) == [HYPERV]
    here.store.note_in_use([], holder="test")
    assert here.store.metadata.leases.find() == []
    here.store.evict(POLICIES["by age"])
    assert left(here.store) == []


def test_a_note_ends_after_some_hours(tmp_path: Path) -> None:
    clock = Clock()
    with node(tmp_path) as here:
        used = here.store.pull(PYTHON)
    clock.now = used.record.updated_at + 3600
    with ImageStore(tmp_path, host=HOST, clock=clock) as store:
        store.note_in_use([(str(used.id), PROCESS)], holder="test")
        clock.now += IN_USE_SECONDS - 1
        assert store.evict(POLICIES["by age"]).evicted == ()
        clock.now += 2
        assert len(store.evict(POLICIES["by age"]).evicted) == 1


def test_the_time_of_use_is_noted_too(tmp_path: Path) -> None:
    clock = Clock()
    with node(tmp_path) as here:
        used = here.store.pull(PYTHON)
    clock.now = used.record.updated_at + 3600
    with ImageStore(tmp_path, host=HOST, clock=clock) as store:
        store.note_in_use([(str(used.id), PROCESS)], holder="test")
        (image,) = store.list()
        assert image.record.used_at == clock.now


def test_a_removal_is_obeyed_and_frees_the_content(here: Node) -> None:
    here.store.note_in_use([(image_id(here, each), each) for each in (HYPERV, PROCESS)], holder="test")
    assert here.store.remove(PYTHON, runtime_handler=HYPERV, collect=True).bytes_freed
    assert left(here.store) == [PROCESS]
    assert here.store.collect_garbage().digests == ()
