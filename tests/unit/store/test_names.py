"""Which record a name, id or digest means, with and without a handler (the rules CRI leaves open)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagestore import Digest, ImageStore
from imagestore.errors import ImageNotFoundError, InvalidInputError, UnknownRuntimeHandlerError
from imagestore.store.maintenance.removal import Removal
from tests.support.node import CONFIG, HYPERV, PROCESS, PYTHON, Node, node, python_image

ALIAS = "registry.example/library/python:alias"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    """python under two handlers, and an alias tag of the default handler's."""
    with node(tmp_path, {PYTHON: python_image(), ALIAS: python_image()}) as opened:
        opened.store.pull(PYTHON, runtime_handler=PROCESS)
        opened.store.pull(PYTHON, runtime_handler=HYPERV)
        opened.store.pull(ALIAS, runtime_handler=PROCESS)
        yield opened


def keys(node: Node) -> set[tuple[str, str]]:
    return {(image.reference, image.runtime_handler) for image in node.store.list()}


def test_status_by_name_is_the_default_handlers(here: Node) -> None:
    assert here.store.get(PYTHON).runtime_handler == PROCESS
    assert here.store.get(PYTHON, runtime_handler="").runtime_handler == PROCESS
    assert here.store.get(PYTHON, runtime_handler=HYPERV).runtime_handler == HYPERV


def test_status_by_name_never_answers_for_another_handler(here: Node) -> None:
    here.store.remove(PYTHON, runtime_handler=PROCESS, all_names=True)
    with pytest.raises(ImageNotFoundError) as caught:
        here.store.get(PYTHON)
    assert HYPERV in caught.value.hint
    with pytest.raises(ImageNotFoundError, match="under runtime handler 'kata'"):
        here.store.get(PYTHON, runtime_handler="kata")


def test_status_by_id_prefers_the_default_handler_and_takes_any(here: Node) -> None:
    guest = here.store.get(PYTHON, runtime_handler=HYPERV)
    for text in (str(guest.id), guest.id.encoded, guest.id.encoded[:12], f"sha256:{guest.id.encoded[:8]}"):
        assert here.store.get(text).runtime_handler == HYPERV
    assert here.store.get(str(here.store.get(PYTHON).id)).runtime_handler == PROCESS


@pytest.mark.parametrize("which", ["target", "manifest"])
def test_status_by_repository_digest(here: Node, which: str) -> None:
    guest = here.store.get(PYTHON, runtime_handler=HYPERV)
    digest = guest.target.digest if which == "target" else guest.manifest.digest
    found = here.store.get(f"registry.example/library/python@{digest}", runtime_handler=HYPERV)
    assert found.record == guest.record
    with pytest.raises(ImageNotFoundError):
        here.store.get(f"registry.example/other@{digest}")


def test_status_by_name_and_digest_takes_any_handler(here: Node) -> None:
    guest = here.store.get(PYTHON, runtime_handler=HYPERV)
    here.store.remove(PYTHON, runtime_handler=PROCESS, all_names=True)
    assert here.store.get(f"registry.example/library/python@{guest.target.digest}").record == guest.record


def test_an_ambiguous_beginning_of_an_id_is_refused(here: Node) -> None:
    record = here.store.get(PYTHON).record
    for end in "01":
        twin = replace(record, reference=f"registry.example/twin:{end}", image_id=Digest("sha256", "f" * 63 + end))
        here.store.metadata.images.put(twin, {})
    with pytest.raises(InvalidInputError, match="fits 2 images"):
        here.store.get("f" * 12)
    with pytest.raises(InvalidInputError, match="fits 2 images"):
        here.store.remove("f" * 63)
    assert here.store.get("f" * 63 + "1").reference == "registry.example/twin:1"


def test_removal_by_name_means_that_name_of_the_default_handler(here: Node) -> None:
    assert here.store.remove(PYTHON).removed == ((PYTHON, PROCESS),)
    assert keys(here) == {(PYTHON, HYPERV), (ALIAS, PROCESS)}


def test_removal_of_all_names_means_the_default_handlers_image(here: Node) -> None:
    assert set(here.store.remove(PYTHON, all_names=True).removed) == {(PYTHON, PROCESS), (ALIAS, PROCESS)}
    assert keys(here) == {(PYTHON, HYPERV)}


def test_a_dry_run_says_what_names_mean_and_removes_nothing(here: Node) -> None:
    both = ((PYTHON, PROCESS), (ALIAS, PROCESS))
    planned = here.store.remove(PYTHON, ALIAS, "none", all_names=True, collect=True, dry_run=True)
    assert planned == Removal({PYTHON: both, ALIAS: both, "none": ()})
    assert planned.removed == both
    assert len(keys(here)) == 3


def test_removal_by_name_means_the_others_when_the_default_has_none(here: Node) -> None:
    here.store.remove(PYTHON, runtime_handler=PROCESS, all_names=True)
    assert here.store.remove(PYTHON).removed == ((PYTHON, HYPERV),)
    assert keys(here) == set()


def test_removal_with_a_handler_leaves_the_others(here: Node) -> None:
    assert here.store.remove(PYTHON, runtime_handler=HYPERV).removed == ((PYTHON, HYPERV),)
    assert keys(here) == {(PYTHON, PROCESS), (ALIAS, PROCESS)}


@pytest.mark.parametrize("length", [64, 12])
def test_removal_by_id_without_a_handler_removes_that_image_under_every_handler(here: Node, length: int) -> None:
    image = here.store.get(PYTHON)
    here.store.pull(PYTHON, runtime_handler="kata")
    assert set(here.store.remove(image.id.encoded[:length]).removed) == {(PYTHON, PROCESS), (ALIAS, PROCESS)}
    assert keys(here) == {(PYTHON, HYPERV), (PYTHON, "kata")}


def test_removal_by_name_and_digest_removes_the_repositorys_names_under_every_handler(here: Node) -> None:
    digest = here.store.get(PYTHON).target.digest
    here.store.remove(f"registry.example/library/python@{digest}")
    assert keys(here) == set()


def test_removal_for_all_handlers_by_name(here: Node) -> None:
    assert here.store.remove(PYTHON, all_handlers=True).removed == ((PYTHON, HYPERV), (PYTHON, PROCESS))
    assert len(here.store.remove(ALIAS, all_handlers=True, all_names=True).removed) == 1
    assert keys(here) == set()
    with pytest.raises(InvalidInputError, match="not both"):
        here.store.remove(PYTHON, runtime_handler=PROCESS, all_handlers=True)


def test_removal_is_idempotent(here: Node) -> None:
    assert here.store.remove(PYTHON, all_handlers=True).removed
    assert here.store.remove(PYTHON, all_handlers=True).removed == ()
    assert here.store.remove("sha256:" + "0" * 64).removed == ()
    assert here.store.remove("!!").removed == ()


def test_removing_one_handlers_image_leaves_the_others_whole_and_frees_the_rest(here: Node) -> None:
    guest = here.store.get(PYTHON, runtime_handler=HYPERV)
    default = here.store.get(PYTHON)
    only_default = {layer.digest for layer in default.layers} - {layer.digest for layer in guest.layers}
    here.store.remove(PYTHON, runtime_handler=PROCESS, all_names=True)
    report = here.store.collect_garbage()
    assert set(report.digests) == only_default | {default.id, default.manifest.digest}
    assert all(path.is_file() for path in here.store.get(PYTHON, runtime_handler=HYPERV).layer_paths)
    here.store.remove(PYTHON, runtime_handler=HYPERV)
    assert here.store.collect_garbage().kept_blobs == 0


def test_records_of_a_handler_that_left_the_configuration_stay_removable(here: Node, tmp_path: Path) -> None:
    # Not one that is built into containerd, which stays known.
    with node(tmp_path, text=CONFIG.replace(HYPERV, "extra")) as before:
        before.store.pull(PYTHON, runtime_handler="extra")
    with node(tmp_path) as later:
        assert (PYTHON, "extra") in keys(later)
        assert later.store.remove(PYTHON, runtime_handler="extra").removed == ((PYTHON, "extra"),)
        with pytest.raises(UnknownRuntimeHandlerError):
            later.store.remove(PYTHON, runtime_handler="extra")


def test_lists_are_filtered_by_name_id_and_handler(here: Node) -> None:
    assert len(list(here.store.list())) == 3
    assert len(list(here.store.list(name=PYTHON))) == 2
    assert len(list(here.store.list(name=PYTHON, runtime_handler=HYPERV))) == 1
    assert len(list(here.store.list(runtime_handler=""))) == 2
    assert len(list(here.store.list(name=here.store.get(PYTHON).id.short))) == 2
    assert list(here.store.list(name="nothing")) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
@pytest.mark.parametrize(("name", "handler"), [(None, None), (None, PROCESS), (PYTHON, None)])
def test_pages_follow_each_other_without_gap_or_repetition(
    here: Node, name: str | None, handler: str | None, limit: int
) -> None:
    pages: list[list[tuple[str, str]]] = []
    after = None
    while found := list(here.store.list(name=name, runtime_handler=handler, after=after, limit=limit)):
        pages.append([(each.reference, each.runtime_handler) for each in found])
        after = pages[-1][-1]
    whole = [(each.reference, each.runtime_handler) for each in here.store.list(name=name, runtime_handler=handler)]
    assert [key for page in pages for key in page] == whole
    assert {len(page) for page in pages[:-1]} <= {limit}


def test_a_page_begins_behind_an_image_that_is_gone(here: Node) -> None:
    first, *rest = [(each.reference, each.runtime_handler) for each in here.store.list()]
    here.store.remove(first[0], runtime_handler=first[1])
    assert [(each.reference, each.runtime_handler) for each in here.store.list(after=first)] == rest


@pytest.mark.parametrize("limit", [0, -1])
def test_an_empty_page_is_refused(here: Node, limit: int) -> None:
    with pytest.raises(InvalidInputError, match="at least 1"):
        here.store.list(limit=limit)


def test_a_store_opened_by_a_relative_path_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons go to the root folder after they opened what they need."""
    monkeypatch.chdir(tmp_path)
    with node(Path("store")) as here:
        monkeypatch.chdir("/")
        image = here.store.pull(PYTHON, runtime_handler="kata")
        assert image.layer_paths[0].is_relative_to(tmp_path / "store")
        assert [each.id for each in here.store.list()] == [image.id]
        here.store.collect_garbage()


@pytest.mark.parametrize("what", ["runtime_handler", "after"])
def test_what_is_no_text_is_refused_with_a_typed_error(tmp_path: Path, what: str) -> None:
    asked: dict[str, Any] = {"runtime_handler": "\ud800", "after": ("\ud800", "kata")}
    with ImageStore(tmp_path) as store, pytest.raises(InvalidInputError, match="expected UTF-8"):
        store.list(**{what: asked[what]})


def test_a_page_may_be_larger_than_any_store(tmp_path: Path) -> None:
    with ImageStore(tmp_path) as store:
        assert list(store.list(limit=2**70)) == []
