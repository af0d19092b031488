"""The table of image ids: what counts as known, and which publish a caller joins."""

from __future__ import annotations

from concurrent.futures import Future

import grpc
import pytest

from imagestore import Digest
from imagestore.publish import ImageState, Publisher
from imagestore.publish.image_states import ImageStates
from tests.support.fake_containerd import FakeContainerd
from tests.support.publishing import APP, PublishingNode

ID = f"sha256:{'a' * 64}"


@pytest.fixture
def states() -> ImageStates:
    return ImageStates(lambda: 1e9)


def test_a_look_that_began_before_containerd_changed_counts_no_more(states: ImageStates) -> None:
    entry = states.entry(ID)
    epoch = states.working(entry)
    states.doubt()
    states.met(entry, 7, epoch)
    assert not states.is_known_met(ID, 7)
    assert states.published() == {ID}
    states.met(entry, 7, states.working(entry))
    assert states.is_known_met(ID, 7)
    assert not states.is_known_met(ID, 8)
    states.doubt()
    assert not states.is_known_met(ID, 7)
    states.found_met([ID], 7, states.epoch)
    assert states.is_known_met(ID, 7)
    states.unknown()
    assert not states.is_known_met(ID, 7)


def test_a_store_without_change_numbers_is_always_asked(states: ImageStates) -> None:
    states.met(states.entry(ID), None, states.epoch)
    assert not states.is_known_met(ID, None)


def test_only_who_is_in_a_hurry_passes_a_publish_that_waits_for_a_thread(states: ImageStates) -> None:
    waiting: Future[None] = Future()
    running: Future[None] = Future()
    running.set_running_or_notify_cancel()
    assert states.join(ID, lambda: waiting) is waiting
    assert states.join(ID, pytest.fail) is waiting
    assert states.join(ID, lambda: running, urgent=True) is running
    assert states.join(ID, pytest.fail, urgent=True) is running
    running.set_result(None)
    assert states.join(ID, lambda: waiting) is waiting


def test_records_that_were_removed_behind_our_back_are_not_taken_for_there(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    image_id = here.pull(APP)
    publisher.reconcile()
    assert publisher.ensure(Digest.parse(image_id)).done()
    for name in sorted(fake.images()):
        fake.remove_image(name)
    publisher.states.doubt()  # by the event
    publisher.ensure(Digest.parse(image_id)).result()
    assert here.unmet() == []


@pytest.mark.parametrize("code", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN])
def test_an_image_whose_lease_could_not_be_ended_runs(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd, code: grpc.StatusCode
) -> None:
    image_id = here.pull(APP)
    publisher.begin_reconcile(full=True)
    fake.faults.refuse("Leases/Delete", code)
    assert publisher.publish(APP) == image_id
    assert publisher.states.entry(image_id).state is ImageState.PUBLISHED
    publisher.reconcile()
    assert here.unmet() == []
