"""A publisher that is called: what it makes, what it takes away, and what it leaves alone."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import grpc
import pytest

from imagestore.errors import (
    ImageNotFoundError,
    InvalidInputError,
    OperationCancelledError,
    PreconditionError,
    ServiceUnavailableError,
)
from imagestore.oci import Digest
from imagestore.publish import ContentWay, ImageState, Publisher, PublishError, PublisherRunningError
from imagestore.testing import build_artifact, build_image
from imagestore.util.machine import MachineMark
from tests.support.fake_containerd import FakeContainerd
from tests.support.node import node
from tests.support.patience import until
from tests.support.publishing import APP, ARM, CONFIG, HOST, KATA, OTHER, RUNC, PublishingNode, app


def test_each_image_of_each_handler_runs(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    ids = {here.pull(APP, RUNC), here.pull(APP, ARM), here.pull(OTHER, KATA)}
    report = publisher.reconcile()
    assert set(report.published) == ids
    assert (report.failed, report.removed, report.unchanged) == ({}, (), 0)
    assert here.unmet() == []


def test_layers_are_linked_and_not_kept(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    image_id = here.pull()
    publisher.reconcile()
    manifest = app().manifests[0]
    assert fake.blobs() == fake.files() == {image_id, str(manifest.descriptor.digest)}
    entry = publisher.states.entry(image_id)
    assert entry.ways == {ContentWay.LINKED: sum(each.size for each in manifest.layers)}


@pytest.mark.parametrize("content", ["link", "copy"])
def test_layers_are_kept(here: PublishingNode, fake: FakeContainerd, content: str) -> None:
    here.pull()
    here.reconcile(content=content)
    fake.collect()
    layers = {each.digest for each in app().manifests[0].layers}
    assert {str(each) for each in layers} <= fake.blobs() & fake.files()
    for digest in layers:
        assert here.store.content.path(digest).samefile(fake.state.path(str(digest))) is (content == "link")
    assert here.unmet() == []


def test_with_nothing_to_do_only_lists_are_asked_for(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    here.pull(APP)
    here.pull(OTHER, KATA)
    publisher.reconcile()
    fake.faults.clear()
    publisher.begin_reconcile(full=False)
    assert fake.faults.calls == {"Images/List": 1}
    fake.faults.clear()
    assert publisher.reconcile().unchanged == 2
    assert fake.faults.calls == {"Images/List": 1, "ImageService/ListImages": 1, "Snapshots/List": 2}


def test_of_a_new_image_only_the_lowest_snapshot_is_asked_for(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    here.pull(APP)
    publisher.reconcile()
    assert fake.faults.calls["Diff/Apply"] == 3
    assert fake.faults.calls["Leases/AddResource"] == 1
    assert fake.faults.calls["Snapshots/Stat"] == 1


def test_the_second_handler_of_a_manifest_brings_no_layer(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    image_id = here.pull(APP, RUNC)
    publisher.reconcile()
    fake.faults.clear()
    assert here.pull(APP, ARM) != image_id
    publisher.reconcile()
    # The base of both is there; the two layers of its own are brought.
    assert fake.faults.calls["Diff/Apply"] == 2
    assert here.unmet() == []


def test_an_image_for_two_snapshotters_is_unpacked_in_both(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    image_id = here.pull(APP, RUNC)
    publisher.reconcile()
    assert not fake.runs(image_id, "native")
    assert here.pull(APP, KATA) == image_id
    assert publisher.reconcile().published == (image_id,)
    assert fake.runs(image_id, "overlayfs")
    assert fake.runs(image_id, "native")
    assert here.unmet() == []


def test_removal_by_handler_frees_what_only_that_handler_had(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    host, guest = here.pull(APP, RUNC), here.pull(APP, ARM)
    publisher.reconcile()
    fake.start_container("c", guest)
    here.store.remove(APP, runtime_handler=ARM)
    publisher.removed().result()
    assert fake.cri.resolve(guest) == ""
    assert guest not in fake.blobs() | fake.files()
    # The container keeps what it stands on.
    assert len(fake.committed()) == 5
    fake.remove_container("c")
    fake.collect()
    assert len(fake.committed()) == 3
    assert fake.runs(host)
    assert here.unmet() == []


def test_one_id_from_two_manifests(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    images = [build_image("linux/amd64", seed="one", members={"annotations": {"n": str(n)}}) for n in range(2)]
    first, second = (f"registry.example/same:{number}" for number in range(2))
    for reference, image in zip((first, second), images, strict=True):
        here.node.registry.library.add(reference, image)
    image_id = here.pull(first, RUNC)
    assert here.pull(second, KATA) == image_id
    publisher.reconcile()
    names = [f"registry.example/same@{image.target.digest}" for image in images]
    assert fake.images().keys() == {image_id, first, *names}
    assert fake.images()[image_id] == str(images[0].target.digest)
    here.store.remove(first, runtime_handler=RUNC)
    assert set(publisher.reconcile().removed) == {first, names[0]}
    # What names the id leads to the manifest that is left.
    assert fake.images() == dict.fromkeys((image_id, names[1]), str(images[1].target.digest))
    assert here.unmet() == []


def test_what_no_container_can_be_made_of_is_no_failure(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    artifact = build_artifact("application/vnd.example", {"file": b"content"})
    here.node.registry.library.add(OTHER, artifact)
    image_id = here.pull(OTHER)
    assert publisher.ensure(Digest.parse(image_id)).result() is None
    report = publisher.reconcile()
    assert report.not_runnable == {image_id: publisher.states.entry(image_id).reason}
    assert "artifact" in report.not_runnable[image_id]
    assert publisher.states.entry(image_id).state is ImageState.NOT_RUNNABLE
    assert fake.images() == {}
    assert fake.leases() == set()
    with pytest.raises(PreconditionError, match="artifact"):
        publisher.publish(OTHER)
    # It is looked at again when the store has changed, and not before.
    fake.faults.clear()
    publisher.begin_reconcile(full=False)
    assert publisher.states.entry(image_id).state is ImageState.NOT_RUNNABLE
    assert fake.faults.calls == {"Images/List": 1}


def test_publish_of_one_name(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    here.pull(APP)
    other = here.pull(OTHER)
    assert publisher.publish(OTHER) == other
    assert set(fake.images().values()) == {str(app("other").manifests[0].descriptor.digest)}
    with pytest.raises(ImageNotFoundError):
        publisher.publish("registry.example/nothing:1")


def test_pins_follow_the_store(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    image_id = here.pull()
    here.store.pin(APP)
    publisher.reconcile()
    assert all(fake.labels(name)["io.cri-containerd.pinned"] == "pinned" for name in fake.images())
    here.store.unpin(APP)
    assert publisher.reconcile().published == (image_id,)
    assert not any("io.cri-containerd.pinned" in fake.labels(name) for name in fake.images())


def test_a_moved_tag_leads_to_the_new_image(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    old = here.pull(APP)
    publisher.reconcile()
    here.node.registry.library.add(APP, app("new"))
    new = here.pull(APP)
    publisher.reconcile()
    assert fake.cri.resolve(APP) == new
    assert fake.cri.resolve(old) == ""
    assert here.unmet() == []


# What others do.


@pytest.mark.parametrize("nth", range(4))
def test_a_record_that_is_removed_behind_our_back_is_made_again(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd, nth: int
) -> None:
    image_id = here.pull()
    publisher.reconcile()
    fake.remove_image(sorted(fake.images())[nth])
    publisher.begin_reconcile(full=False)
    until(lambda: publisher.states.entry(image_id).state is ImageState.PUBLISHED, "published again")
    assert here.unmet() == []


def test_content_that_is_removed_behind_our_back_is_brought_again(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    """The CRI plugin keeps what it knows until containerd is restarted; then it knows the image no more."""
    image_id = here.pull()
    publisher.reconcile()
    fake.remove_content(str(app().manifests[0].descriptor.digest))
    fake.restart()
    assert fake.cri.resolve(image_id) == ""
    assert publisher.reconcile().failed == {}
    assert here.unmet() == []


def test_a_snapshot_that_is_removed_behind_our_back_is_made_again(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    image_id = here.pull()
    publisher.reconcile()
    top = fake.state.chains("k8s.io", image_id)[-1]
    fake.state.remove_snapshot("k8s.io", "overlayfs", top)
    assert not fake.runs(image_id)
    assert publisher.reconcile().published == (image_id,)
    assert here.unmet() == []


def test_a_wiped_containerd_gets_everything_again(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    ids = {here.pull(APP, RUNC), here.pull(APP, ARM), here.pull(OTHER, KATA)}
    publisher.reconcile()
    fake.wipe()
    publisher.disconnected()
    assert set(publisher.reconcile().published) == ids
    assert here.unmet() == []


def test_a_name_that_a_user_copied_is_left_alone(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    here.pull()
    publisher.reconcile()
    fake.tag(APP, "registry.example/mine:1")
    here.store.remove(APP, runtime_handler=RUNC)
    publisher.reconcile()
    assert "registry.example/mine:1" in fake.images()
    assert APP not in fake.images()
    publisher.unpublish_all()
    assert "registry.example/mine:1" in fake.images()


def test_somebody_elses_record_that_leads_to_the_same_image_is_left_alone(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    fake.pull(APP, app())
    before = fake.images()[APP]
    image_id = here.pull()
    publisher.reconcile()
    assert fake.images()[APP] == before == str(app().target.digest)
    assert here.unmet() == []
    fake.faults.clear()
    publisher.begin_reconcile(full=False)
    assert fake.faults.calls == {"Images/List": 1}
    here.store.remove(APP, runtime_handler=RUNC)
    publisher.reconcile()
    # The plugin made the record of the id for it, which the publisher took for its own.
    assert APP in fake.images()
    assert image_id not in fake.images() or fake.runs(image_id)


def test_somebody_elses_record_that_leads_nowhere_any_more_is_taken_over(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    fake.pull(APP, app())
    here.pull()
    publisher.reconcile()
    fake.remove_content(str(app().target.digest))
    fake.restart()
    publisher.disconnected()
    assert publisher.reconcile().failed == {}
    assert here.unmet() == []


def test_somebody_elses_record_that_leads_elsewhere_is_taken_over(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd, caplog: pytest.LogCaptureFixture
) -> None:
    fake.pull(APP, app("another"))
    image_id = here.pull()
    publisher.reconcile()
    assert fake.cri.resolve(APP) == image_id
    assert "record taken over" in [each.message for each in caplog.records]
    assert here.unmet() == []


def test_a_record_that_was_accepted_for_one_image_is_not_for_another(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    fake.pull(APP, app())
    here.pull()
    publisher.reconcile()
    here.node.registry.library.add(APP, app("new"))
    new = here.pull()
    publisher.reconcile()
    assert fake.cri.resolve(APP) == new
    assert here.unmet() == []


def test_two_stores_on_one_containerd(here: PublishingNode, publisher: Publisher, tmp_path: Path) -> None:
    fake = here.fake
    theirs = {APP: app("theirs"), OTHER: app("other")}
    with (
        node(tmp_path / "second", theirs, host=HOST, text=CONFIG) as second,
        Publisher(second.store, fake.address) as another,
    ):
        first_ids = {here.pull(APP), here.pull(OTHER)}
        second_ids = {str(second.store.pull(name).id) for name in (APP, OTHER)}
        publisher.reconcile()
        another.reconcile()
        publisher.reconcile()  # takes the name back that the second took; that one leaves it
        for _ in range(2):
            fake.faults.clear()
            assert publisher.reconcile().failed == another.reconcile().failed == {}
            assert not {"Images/Create", "Images/Update"} & fake.faults.calls.keys()
        assert all(fake.runs(each) for each in first_ids | second_ids)
        assert here.unmet() == []
        publisher.unpublish_all()
        another.reconcile()
        assert {fake.cri.resolve(name) for name in (APP, OTHER)} == second_ids
        assert all(fake.runs(each) for each in second_ids)


def test_records_of_this_store_from_another_machine(
    here: PublishingNode, fake: FakeContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_id = here.pull()
    with monkeypatch.context() as patch:
        patch.setattr("imagestore.publish.publisher.machine_mark", lambda _: MachineMark("1" * 32))
        here.reconcile()
    monkeypatch.setattr("imagestore.publish.publisher.machine_mark", lambda _: MachineMark("2" * 32))
    with here.publisher() as publisher, pytest.raises(PreconditionError, match="another machine") as refused:
        publisher.reconcile()
    assert "--take-over" in refused.value.hint
    with here.publisher(take_over=True) as publisher:
        assert publisher.reconcile().published == (image_id,)
    with here.publisher() as publisher:
        assert publisher.reconcile().unchanged == 1


def test_a_second_publisher_of_the_store_is_refused(here: PublishingNode, publisher: Publisher) -> None:
    publisher.reconcile()
    with here.publisher() as second, pytest.raises(PublisherRunningError) as refused:
        second.reconcile()
    assert refused.value.process_id == os.getpid()
    publisher.close()
    here.reconcile()


def test_bad_arguments(here: PublishingNode) -> None:
    with pytest.raises(InvalidInputError, match="auto, link, copy"):
        here.publisher(content="move")
    with pytest.raises(InvalidInputError):
        Publisher(here.store, "tcp://127.0.0.1:1")
    with pytest.raises(InvalidInputError, match="expected k8s"):
        here.publisher(namespace="moby")


def test_a_containerd_that_is_away(here: PublishingNode, fake: FakeContainerd) -> None:
    image_id = here.pull()
    fake.stop()
    with here.publisher() as publisher:
        with pytest.raises(ServiceUnavailableError):
            publisher.reconcile()
        with pytest.raises(PublishError, match="not published into containerd"):
            publisher.publish(APP)
        assert publisher.removed().result() is None
        assert publisher.states.entry(image_id).state is ImageState.FAILED
        fake.start()
        until(lambda: publisher.ensure(Digest.parse(image_id)).exception() is None, "connected")


# Of several callers.


def test_ensure_of_one_image_is_shared(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    image_id = Digest.parse(here.pull())
    gate = threading.Event()
    fake.faults.meanwhile("Diff/Apply", gate.wait)
    waiting = [publisher.ensure(image_id) for _ in range(16)]
    until(lambda: fake.faults.calls["Diff/Apply"], "the layer is applied")
    assert not any(each.done() for each in waiting)
    gate.set()
    for each in waiting:
        each.result()
    assert fake.faults.calls["Diff/Apply"] == 3
    fake.faults.clear()
    assert publisher.ensure(image_id).done()
    assert not fake.faults.calls
    assert here.unmet() == []


def test_who_joins_a_running_publish_gets_what_was_pulled_since(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    image_id = here.pull(APP, RUNC)
    gate = threading.Event()
    fake.faults.meanwhile("ImageService/ImageStatus", gate.wait)
    first = publisher.ensure(Digest.parse(image_id))
    until(lambda: fake.faults.calls["ImageService/ImageStatus"], "the records are made")
    here.pull(APP, KATA)
    second = publisher.ensure(Digest.parse(image_id))
    gate.set()
    first.result()
    second.result()
    assert here.unmet() == []


def test_a_removal_during_a_publish_is_seen(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    image_id = here.pull()
    gate = threading.Event()
    fake.faults.meanwhile("Leases/Delete", gate.wait, skip=1)  # the first one is that of the probe
    done = publisher.ensure(Digest.parse(image_id))
    until(lambda: fake.faults.calls["Leases/Delete"] == 2, "the lease is ended")
    fake.remove_image(APP)
    publisher.begin_reconcile(full=False)
    gate.set()
    done.result()
    assert here.unmet() == []


def test_a_comparison_does_not_say_that_a_running_publish_is_done(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    """The records are there, and the CRI plugin hasn't heard of them yet."""
    image_id = here.pull()
    fake.rules.is_deaf = True
    first = publisher.ensure(Digest.parse(image_id))
    until(lambda: image_id in fake.images(), "the records are made")
    publisher.begin_reconcile(full=False)
    second = publisher.ensure(Digest.parse(image_id))
    assert not second.done()
    fake.rules.is_deaf = False  # what is made from now on is heard, too
    fake.cri.hear()
    first.result()
    second.result()


def test_right_records_alone_do_not_make_an_image_published(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    """Its layers are gone and can't be unpacked again: whatever else happens, it is not said to run."""
    image_id = here.pull()
    publisher.reconcile()
    top = fake.state.chains("k8s.io", image_id)[-1]
    fake.state.remove_snapshot("k8s.io", "overlayfs", top)
    fake.faults.refuse("Diff/Apply", grpc.StatusCode.UNKNOWN, count=1000)
    assert publisher.reconcile().failed.keys() == {image_id}
    for _ in range(3):
        publisher.begin_reconcile(full=False)
        with pytest.raises(PublishError):
            publisher.ensure(Digest.parse(image_id)).result()
        here.pull(OTHER, ARM)  # another change of the store
    fake.faults.clear()
    publisher.ensure(Digest.parse(image_id)).result()
    assert fake.runs(image_id)


@pytest.mark.parametrize("call", ["Snapshots/Commit", "Images/Create", "ImageService/ImageStatus"])
def test_an_image_that_is_removed_while_it_is_published(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd, call: str
) -> None:
    image_id = here.pull()
    fake.faults.meanwhile(call, lambda: here.store.remove(APP, runtime_handler=RUNC))
    error = publisher.ensure(Digest.parse(image_id)).exception()
    # Once its records are being made it is published, and then taken away.
    assert isinstance(error, PublishError) is (call == "Snapshots/Commit")
    report = publisher.reconcile()
    assert (report.published, report.failed) == ((), {})
    assert fake.images() == {}
    assert fake.leases() == set()
    assert sum(publisher.states.counts().values()) == 0
    with pytest.raises(PublishError, match="removed"):
        publisher.ensure(Digest.parse(image_id)).result()


def test_a_closed_publisher_leaves_no_lease_and_begins_nothing(here: PublishingNode, fake: FakeContainerd) -> None:
    image_id = Digest.parse(here.pull())
    with here.publisher() as publisher:
        gate = threading.Event()
        fake.faults.meanwhile("Diff/Apply", gate.wait)
        done = publisher.ensure(image_id)
        until(lambda: fake.faults.calls["Diff/Apply"], "the layer is applied")
        closing = threading.Thread(target=publisher.close)
        closing.start()
        with pytest.raises(PublishError):
            done.result()
        closing.join()
        gate.set()
        assert fake.leases() == set()
        with pytest.raises(OperationCancelledError):
            publisher.ensure(image_id)
    here.reconcile()
    assert here.unmet() == []


def test_unpublish(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    first, second = here.pull(APP), here.pull(OTHER)
    publisher.reconcile()
    assert first in publisher.unpublish({first})
    assert not fake.runs(first)
    assert fake.runs(second)
    assert second in publisher.unpublish_all()
    assert fake.images() == {}
    assert fake.blobs() == fake.files() == fake.committed() == set()
