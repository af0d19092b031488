"""Further references for images that are here, by handler; and taking them away again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore import CancelToken, Descriptor
from imagestore.errors import (
    ImageDeniedError,
    ImageNotFoundError,
    InvalidInputError,
    InvalidReferenceError,
    StoreBusyError,
    UnknownRuntimeHandlerError,
)
from imagestore.store.tagging import further_reference, tag_records
from imagestore.testing import build_image
from tests.support.node import HYPERV, PROCESS, PYTHON, Node, node, python_image

PAUSE = "registry.example/pause:1"
MIRROR = "mirror.example/python:latest"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    """python under two handlers, and another image of the default handler's."""
    images = {PYTHON: python_image(), PAUSE: build_image("windows(10.0.20348.1970)/amd64", seed="pause")}
    with node(tmp_path, images) as opened:
        opened.store.pull(PYTHON, runtime_handler=PROCESS)
        opened.store.pull(PYTHON, runtime_handler=HYPERV)
        opened.store.pull(PAUSE, runtime_handler=PROCESS)
        yield opened


def keys(node: Node) -> set[tuple[str, str]]:
    return {(image.reference, image.runtime_handler) for image in node.store.list()}


def test_a_further_reference_is_the_same_image_and_keeps_its_content(here: Node) -> None:
    before = here.store.get(PYTHON)
    (tagged,) = here.store.tag(PYTHON, "mirror.example/python")
    assert (tagged.reference, tagged.runtime_handler, tagged.id) == (MIRROR, PROCESS, before.id)
    assert here.store.get(MIRROR).record == tagged.record
    assert (tagged.target, tagged.manifest) == (before.target, before.manifest)
    asked = here.requests("manifest")
    here.store.metadata.images.remove([(PYTHON, PROCESS)])
    here.store.collect_garbage()
    assert not here.store.check().faults
    assert here.requests("manifest") == asked


@pytest.mark.parametrize(
    ("handler", "for_all", "whose"),
    [(None, False, {PROCESS}), (HYPERV, False, {HYPERV}), ("", False, {PROCESS}), (None, True, {PROCESS, HYPERV})],
)
def test_a_tag_means_these_handlers_images(here: Node, handler: str | None, for_all: bool, whose: set[str]) -> None:
    tagged = here.store.tag(PYTHON, MIRROR, runtime_handler=handler, all_handlers=for_all)
    assert {each.runtime_handler for each in tagged} == whose
    assert keys(here) == {(PYTHON, PROCESS), (PYTHON, HYPERV), (PAUSE, PROCESS), *((MIRROR, each) for each in whose)}
    for each in tagged:
        assert each.id == here.store.get(PYTHON, runtime_handler=each.runtime_handler).id


def test_an_id_means_the_image_under_every_handler_that_has_it(here: Node) -> None:
    guest = here.store.get(PYTHON, runtime_handler=HYPERV)
    here.store.tag(PYTHON, "registry.example/a:1", runtime_handler=HYPERV)  # so that it has two references
    (tagged,) = here.store.tag(guest.id.encoded[:12], MIRROR)
    assert (tagged.runtime_handler, tagged.id) == (HYPERV, guest.id)


def test_what_had_the_reference_loses_it_under_that_handler(here: Node) -> None:
    python = here.store.get(PYTHON, runtime_handler=HYPERV)
    here.store.tag(PAUSE, PYTHON)
    assert here.store.get(PYTHON).id == here.store.get(PAUSE).id
    assert here.store.get(PYTHON, runtime_handler=HYPERV).record == python.record
    here.store.collect_garbage()
    assert not here.store.check().faults


def test_a_pin_is_not_passed_on_and_one_that_is_there_stays(here: Node) -> None:
    here.store.pin(PYTHON)
    here.store.tag(PYTHON, MIRROR)
    assert not here.store.get(MIRROR).record.is_pinned
    here.store.tag(PAUSE, PYTHON)
    assert here.store.get(PYTHON).record.is_pinned


def test_its_own_reference_changes_nothing(here: Node) -> None:
    before = here.store.get(PYTHON).record
    assert here.store.tag(PYTHON, PYTHON)[0].record == before == here.store.get(PYTHON).record


@pytest.mark.parametrize(
    ("name", "reference", "kind"),
    [
        ("nothing:1", MIRROR, ImageNotFoundError),
        ("", MIRROR, InvalidInputError),
        (PYTHON, "Not/A:Name", InvalidReferenceError),
        (PYTHON, "", InvalidReferenceError),
        (PYTHON, f"a@sha256:{'0' * 64}", InvalidInputError),
    ],
)
def test_what_makes_no_sense_is_refused(here: Node, name: str, reference: str, kind: type[Exception]) -> None:
    before = keys(here)
    with pytest.raises(kind):
        here.store.tag(name, reference)
    assert keys(here) == before


@pytest.mark.parametrize("change", ["tag", "untag"])
def test_handlers_are_checked_as_for_a_removal(here: Node, change: str) -> None:
    arguments = (PYTHON, MIRROR) if change == "tag" else (PYTHON,)
    with pytest.raises(UnknownRuntimeHandlerError):
        getattr(here.store, change)(*arguments, runtime_handler="mistyped")
    with pytest.raises(InvalidInputError, match="not both"):
        getattr(here.store, change)(*arguments, runtime_handler=HYPERV, all_handlers=True)
    with pytest.raises(ImageNotFoundError, match="under runtime handler 'kata'"):
        getattr(here.store, change)(*arguments, runtime_handler="kata")


class RefusesMirrors:
    def verify(self, reference: str, target: Descriptor, *, cancel: CancelToken) -> None:
        if reference.startswith("mirror.example/"):
            raise ImageDeniedError(reference, "signatures", "unsigned")


def test_an_image_verifier_is_asked_about_the_new_name(tmp_path: Path) -> None:
    with node(tmp_path, verifier=RefusesMirrors()) as here:
        here.store.pull(PYTHON)
        with pytest.raises(ImageDeniedError):
            here.store.tag(PYTHON, MIRROR)
        here.store.tag(PYTHON, "registry.example/fine:1")
        assert keys(here) == {(PYTHON, PROCESS), ("registry.example/fine:1", PROCESS)}


@pytest.mark.parametrize("meanwhile", ["removed", "moved", "used"])
def test_an_image_that_changes_before_it_is_tagged(here: Node, meanwhile: str) -> None:
    records = [here.store.get(PYTHON, runtime_handler=each).record for each in (HYPERV, PROCESS)]
    further = further_reference(MIRROR)
    if meanwhile == "used":
        here.store.touch(PYTHON, runtime_handler=PROCESS)
        assert len(tag_records(here.store.metadata, records, further)) == 2
        return
    if meanwhile == "removed":
        here.store.remove(PYTHON, runtime_handler=PROCESS)
    else:
        here.store.tag(PAUSE, PYTHON, runtime_handler=PROCESS)
    with pytest.raises(StoreBusyError, match="since then"):
        tag_records(here.store.metadata, records, further)
    assert not any(reference == MIRROR for reference, _ in keys(here))


def test_a_reference_is_taken_away_and_the_image_stays(here: Node) -> None:
    here.store.tag(PYTHON, MIRROR, all_handlers=True)
    assert here.store.untag("mirror.example/python", runtime_handler=HYPERV) == ((MIRROR, HYPERV),)
    assert here.store.untag(PYTHON) == ((PYTHON, PROCESS),)
    assert keys(here) == {(PYTHON, HYPERV), (MIRROR, PROCESS), (PAUSE, PROCESS)}
    here.store.collect_garbage()
    assert not here.store.check().faults


def test_the_only_reference_is_not_taken_away(here: Node) -> None:
    here.store.tag(PYTHON, MIRROR, runtime_handler=PROCESS)
    before = keys(here)
    with pytest.raises(InvalidInputError, match=f"no other reference under runtime handler '{HYPERV}'") as caught:
        here.store.untag(PYTHON, all_handlers=True)  # the default handler's has another
    assert "rmi" in caught.value.hint
    assert keys(here) == before


def test_an_id_is_no_reference_to_take_away(here: Node) -> None:
    here.store.tag(PYTHON, MIRROR)
    image_id = here.store.get(PYTHON).id
    with pytest.raises((ImageNotFoundError, InvalidReferenceError)):
        here.store.untag(str(image_id))
    with pytest.raises(ImageNotFoundError):
        here.store.untag(f"registry.example/library/python@{here.store.get(PYTHON).target.digest}")
    assert (MIRROR, PROCESS) in keys(here)
