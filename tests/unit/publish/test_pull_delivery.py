"""Layers that go into containerd while their pull goes on, and what becomes of them when it ends."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

import grpc
import pytest

from imagestore import config
from imagestore.events import BlobDone, Event, Observer, Selected, ignore
from imagestore.oci import Digest
from imagestore.publish import ImageState, Publisher
from imagestore.testing import build_artifact
from imagestore.util.cancel import CancelToken
from tests.support.fake_containerd import FakeContainerd
from tests.support.patience import until
from tests.support.publishing import APP, ARM, CONFIG, HOST, KATA, OTHER, RUNC, PublishingNode, app

MANIFEST = app().manifests[0]
#: What a pull of it says, in this order; the blobs in any other.
SELECTED = Selected(APP, RUNC, "linux/amd64", MANIFEST.descriptor, "")
CONFIG_DONE, *LAYERS_DONE = (BlobDone(each, each.size) for each in (MANIFEST.config, *MANIFEST.layers))
EVENTS: list[Event] = [SELECTED, CONFIG_DONE, *LAYERS_DONE]


class StopError(Exception):
    """How a pull fails."""


@contextlib.contextmanager
def failing(publisher: Publisher) -> Iterator[Observer]:
    """A pull that fails at the end of its block."""
    with contextlib.suppress(StopError), publisher.pulling(RUNC, ignore) as observer:
        yield observer
        raise StopError


@pytest.fixture
def connected(here: PublishingNode, publisher: Publisher) -> Publisher:
    """A publisher that has found containerd, and a store that has the content of an image: a pull can be played."""
    here.pull(APP, RUNC)
    here.store.remove(APP, runtime_handler=RUNC)
    publisher.reconcile()
    image_id = here.pull(APP, RUNC)
    assert not any(publisher.states.counts().values()), image_id
    return publisher


@pytest.fixture
def image_id(here: PublishingNode, connected: Publisher) -> str:
    return str(MANIFEST.config.digest)


def chains(fake: FakeContainerd) -> int:
    """How many layers are unpacked."""
    return len(fake.committed())


def test_layers_are_unpacked_as_far_as_they_have_come(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str
) -> None:
    seen: list[Event] = []
    with connected.pulling(RUNC, seen.append) as observer:
        observer(SELECTED)
        observer(LAYERS_DONE[0])
        observer(CONFIG_DONE)
        until(lambda: chains(fake) == 1, "the first layer is unpacked")
        observer(LAYERS_DONE[2])
        assert chains(fake) == 1
        observer(LAYERS_DONE[1])
        until(lambda: chains(fake) == 3, "the others are, too")
        assert len(fake.leases()) == 1
        fake.collect()
        assert chains(fake) == 3
    assert seen == [SELECTED, LAYERS_DONE[0], CONFIG_DONE, LAYERS_DONE[2], LAYERS_DONE[1]]
    fake.faults.clear()
    connected.ensure(Digest.parse(image_id)).result()
    assert fake.faults.calls["Diff/Apply"] == fake.faults.calls["Leases/Create"] == 0
    assert here.unmet() == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_blobs_come_in_any_order(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str, order: tuple[int, ...]
) -> None:
    fake.rules.is_hostile = True
    events = [CONFIG_DONE, *LAYERS_DONE]
    with connected.pulling(RUNC, ignore) as observer:
        observer(SELECTED)
        for number in order:
            observer(events[number])
    connected.ensure(Digest.parse(image_id)).result()
    assert fake.faults.calls["Diff/Apply"] == 3
    assert here.unmet() == []


def test_a_pull_of_the_store(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    publisher.reconcile()
    for handler in (RUNC, ARM, KATA):
        with publisher.pulling(handler, ignore) as observer:
            image = here.store.pull(APP, runtime_handler=handler, observer=observer)
        publisher.ensure(image.id).result()
    assert here.unmet() == []


def test_the_default_handler_has_its_own_snapshotter(here: PublishingNode, connected: Publisher) -> None:
    kata = config.loads(CONFIG.replace('default_runtime_name = "runc"', 'default_runtime_name = "kata"'), host=HOST)
    here.store.config = kata
    with connected.pulling("", ignore) as observer:
        for event in EVENTS:
            observer(event)
        until(lambda: here.fake.committed("native"), "a layer is unpacked")
    assert here.fake.committed("overlayfs") == set()
    here.store.remove(APP, runtime_handler=RUNC)
    connected.removed().result()


def test_what_a_failed_pull_began_is_ended(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str
) -> None:
    with failing(connected) as observer:
        for event in EVENTS[:4]:
            observer(event)
        until(lambda: chains(fake) == 2, "two layers are unpacked")
    assert fake.leases() == set()
    assert fake.snapshots() == {}
    assert fake.blobs() == fake.files() == set()
    connected.ensure(Digest.parse(image_id)).result()
    assert here.unmet() == []


def test_a_pull_that_fails_does_not_wait_for_its_layer(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str
) -> None:
    gate = threading.Event()
    fake.faults.meanwhile("Diff/Apply", gate.wait)
    with failing(connected) as observer:
        for event in EVENTS:
            observer(event)
        until(lambda: fake.faults.calls["Diff/Apply"], "a layer is applied")
    assert fake.leases() == set()
    gate.set()
    fake.collect()
    assert fake.snapshots() == {}
    connected.ensure(Digest.parse(image_id)).result()
    assert here.unmet() == []


def test_a_cancelled_pull_does_not_wait_for_a_layer_that_hangs(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str
) -> None:
    """Its content is there; only containerd doesn't answer."""
    gate, cancel = threading.Event(), CancelToken()
    fake.faults.meanwhile("Diff/Apply", gate.wait)
    with connected.pulling(RUNC, ignore, cancel) as observer:
        for event in EVENTS:
            observer(event)
        until(lambda: fake.faults.calls["Diff/Apply"], "a layer is applied")
        cancel.cancel("the kubelet has gone")
    gate.set()
    connected.ensure(Digest.parse(image_id)).result()
    assert here.unmet() == []


def test_pulls_that_fail_and_are_repeated_at_once(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str
) -> None:
    fake.rules.is_hostile = True
    for number in range(20):
        with failing(connected) as observer:
            for event in EVENTS[: 2 + number % 4]:
                observer(event)
    assert fake.leases() == set()
    connected.ensure(Digest.parse(image_id)).result()
    assert here.unmet() == []


def test_a_pull_that_fails_before_it_selected(connected: Publisher, fake: FakeContainerd) -> None:
    with failing(connected) as observer:
        observer(LAYERS_DONE[0])
    assert fake.leases() == set()


def test_without_a_connection_nothing_is_begun(here: PublishingNode, publisher: Publisher) -> None:
    def observer(_: Event) -> None:
        pass

    with publisher.pulling(RUNC, observer) as given:
        assert given is observer
    assert here.fake.faults.calls == {}


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN], ids=lambda code: code.name)
@pytest.mark.parametrize("call", ["Leases/Create", "Snapshots/Prepare", "Diff/Apply"])
def test_a_delivery_that_fails_is_the_publishs_matter(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str, call: str, code: grpc.StatusCode
) -> None:
    fake.faults.refuse(call, code)
    with connected.pulling(RUNC, ignore) as observer:
        for event in EVENTS:
            observer(event)
        until(lambda: not fake.faults.is_any_left, "the delivery has failed")
    connected.ensure(Digest.parse(image_id)).result()
    assert here.unmet() == []


def test_a_fault_of_the_delivery_does_not_fail_the_pull(
    here: PublishingNode,
    connected: Publisher,
    image_id: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    called = threading.Event()

    def broken(*_: object) -> None:
        called.set()
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("imagestore.publish.pull_delivery.ImageDocuments.read", broken)
        with connected.pulling(RUNC, ignore) as observer:
            observer(SELECTED)
            observer(CONFIG_DONE)
            called.wait()
    assert "layers weren't delivered" in [each.message for each in caplog.records]
    connected.ensure(Digest.parse(image_id)).result()
    assert here.unmet() == []


def test_containerd_goes_during_a_pull(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str
) -> None:
    with connected.pulling(RUNC, ignore) as observer:
        for event in EVENTS[:3]:
            observer(event)
        until(lambda: chains(fake) == 1, "one layer is unpacked")
        fake.wipe()
        observer(LAYERS_DONE[1])
    connected.ensure(Digest.parse(image_id)).result()
    assert here.unmet() == []


def test_an_artifact_is_not_delivered(here: PublishingNode, connected: Publisher, fake: FakeContainerd) -> None:
    here.node.registry.library.add(OTHER, build_artifact("application/vnd.example", {"file": b"content"}))
    with connected.pulling(RUNC, ignore) as observer:
        image = here.store.pull(OTHER, runtime_handler=RUNC, observer=observer)
    assert fake.leases() == set()
    connected.ensure(image.id).result()
    assert connected.states.entry(str(image.id)).state is ImageState.NOT_RUNNABLE


def test_an_image_that_other_work_has_is_not_delivered(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str
) -> None:
    gate = threading.Event()
    fake.faults.meanwhile("Diff/Apply", gate.wait)
    done = connected.ensure(Digest.parse(image_id))
    until(lambda: fake.faults.calls["Diff/Apply"], "a layer is applied")
    with connected.pulling(RUNC, ignore) as observer:
        for event in EVENTS:
            observer(event)
    gate.set()
    done.result()
    assert fake.faults.calls["Diff/Apply"] == 3
    assert here.unmet() == []


def test_two_pulls_of_one_image(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str
) -> None:
    """The first one delivers; when it fails, the second's publish does all of it."""
    with connected.pulling(KATA, ignore) as second, failing(connected) as first:
        for event in EVENTS:
            first(event)
        until(lambda: chains(fake) == 3, "all layers are unpacked")
        for event in EVENTS:
            second(event)
    connected.ensure(Digest.parse(image_id)).result()
    assert here.unmet() == []


@pytest.mark.parametrize("fails", [False, True])
def test_an_image_that_is_removed_before_its_publish(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str, fails: bool
) -> None:
    with connected.pulling(RUNC, ignore) as observer:
        for event in EVENTS:
            observer(event)
        until(lambda: chains(fake) == 3, "all layers are unpacked")
    assert len(fake.leases()) == 1
    here.store.remove(APP, runtime_handler=RUNC)
    if fails:
        fake.faults.refuse("Leases/Delete", grpc.StatusCode.UNKNOWN)
        connected.removed().result()
        assert len(fake.leases()) == 1
    connected.removed().result()
    assert fake.leases() == set()
    assert fake.snapshots() == {}
    connected.reconcile()
    assert not any(connected.states.counts().values()), image_id


def test_a_comparison_during_a_pull_ends_nothing_of_it(
    here: PublishingNode, connected: Publisher, fake: FakeContainerd, image_id: str
) -> None:
    here.store.remove(APP, runtime_handler=RUNC)  # a pull's image is in the store when it has ended
    here.pull(OTHER)
    with connected.pulling(KATA, ignore) as observer:
        image = here.store.pull(APP, runtime_handler=KATA, observer=observer)
        here.store.remove(APP, runtime_handler=KATA)
        connected.reconcile()
        connected.disconnected()
        connected.reconcile()
        here.store.pull(APP, runtime_handler=KATA)
    connected.ensure(image.id).result()
    assert here.unmet() == []


def test_a_pull_does_not_wait_for_a_thread(
    here: PublishingNode, fake: FakeContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagestore.publish.pull_delivery.DELIVERIES_AT_ONCE", 1)
    here.pull(APP, RUNC)
    gate = threading.Event()
    with here.publisher() as publisher:
        publisher.begin_reconcile(full=False)
        publisher.reconcile()
        here.store.remove(APP, runtime_handler=RUNC)
        publisher.reconcile()
        here.pull(APP, RUNC)
        fake.faults.meanwhile("Diff/Apply", gate.wait)
        fake.faults.calls.clear()
        with publisher.pulling(RUNC, ignore) as first:
            for event in EVENTS:
                first(event)
            until(lambda: fake.faults.calls["Diff/Apply"], "a layer is applied")
            with publisher.pulling(RUNC, ignore) as second:
                second(SELECTED)
                second(CONFIG_DONE)
            gate.set()
        publisher.reconcile()
    assert here.unmet() == []


def test_closing_ends_a_delivery(here: PublishingNode, fake: FakeContainerd) -> None:
    here.pull(APP, RUNC)
    gate = threading.Event()
    publisher = here.publisher()
    publisher.reconcile()
    fake.remove_image(str(MANIFEST.config.digest))
    for name in list(fake.images()):
        fake.remove_image(name)
    fake.faults.meanwhile("Diff/Apply", gate.wait)
    with publisher.pulling(RUNC, ignore) as observer:
        for event in EVENTS:
            observer(event)
        until(lambda: fake.faults.calls["Diff/Apply"] > 3, "a layer is applied")
        publisher.close()
        for event in LAYERS_DONE:
            observer(event)
    gate.set()
    here.reconcile()
    assert here.unmet() == []
