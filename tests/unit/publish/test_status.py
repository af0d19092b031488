"""How publishing stands: from containerd's side, from that of the process that publishes, and while nobody answers."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from imagestore.errors import ImageNotFoundError, PreconditionError
from imagestore.publish import ContentWay, ImageState, Publisher, PublishError
from imagestore.publish.containerd import Containerd
from imagestore.publish.file_systems import ImageFileSystems
from imagestore.publish.following import PublishFollower
from imagestore.publish.wanted import STORE
from imagestore.testing import build_artifact, build_image
from imagestore.util.machine import MachineMark
from tests.support.fake_containerd import FakeContainerd
from tests.support.fake_containerd_state import Rules
from tests.support.patience import until
from tests.support.publishing import APP, ARM, KATA, OTHER, RUNC, PublishingNode, app, publishing_node


def states(here: PublishingNode) -> dict[str, ImageState]:
    """As a process of its own sees them."""
    with here.publisher() as looking:
        return {image.image_id: image.state for image in looking.status().images}


def test_before_and_after_a_publish(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    image_id = here.pull()
    before = publisher.status()
    assert (before.is_connected, before.reason, before.version, before.process_id) == (True, "", "1.6.20", None)
    assert (before.way, before.way_reason) == (ContentWay.LINKED, "")
    (image,) = before.images
    assert (image.image_id, image.state) == (image_id, ImageState.WANTED)
    assert image.records == ((APP, RUNC),)
    assert image.missing_names == tuple(image.names)
    assert (image.snapshotters, image.missing_snapshotters) == (("overlayfs",), ("overlayfs",))
    assert (fake.images(), fake.leases(), fake.files()) == ({}, set(), set())
    publisher.reconcile()
    (image,) = publisher.status().images
    assert (image.state, image.missing_names, image.missing_snapshotters) == (ImageState.PUBLISHED, (), ())
    assert image.ways == {ContentWay.LINKED: sum(layer.size for layer in app().manifests[0].layers)}


def test_a_trace_goes_from_references_to_containers(here: PublishingNode, publisher: Publisher) -> None:
    runc, kata = here.pull(APP, RUNC), here.pull(OTHER, KATA)
    arm = here.pull(APP, ARM)
    publisher.reconcile()
    here.fake.start_container("c1", runc)
    traced = {image.image_id: image for image in publisher.status(APP).images}
    assert traced.keys() == {runc, arm}
    assert traced[runc].containers == ("c1",)
    assert traced[runc].names[APP] == traced[runc].names[runc]
    assert APP not in traced[arm].names
    (only,) = publisher.status(APP, runtime_handler=ARM).images
    assert only.image_id == arm
    (by_id,) = publisher.status(kata).images
    assert by_id.snapshotters == ("native",)
    with pytest.raises(ImageNotFoundError):
        publisher.status("registry.example/nothing:1")


def test_what_went_behind_its_back_is_stale(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    image_id = here.pull()
    publisher.reconcile()
    fake.remove_image(APP)
    (image,) = publisher.status().images
    assert (image.state, image.missing_names) == (ImageState.STALE, (APP,))
    publisher.reconcile()
    fake.state.remove_snapshot("k8s.io", "overlayfs", fake.state.chains("k8s.io", image_id)[-1])
    assert states(here) == {image_id: ImageState.STALE}


def test_names_that_go_and_names_of_others(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    image_id = here.pull()
    publisher.reconcile()
    other = here.pull(OTHER)
    fake.pull(OTHER, app("somebody else's"))
    here.store.remove(APP)
    found = publisher.status()
    assert image_id in found.unwanted
    assert APP in found.unwanted
    assert found.foreign == (OTHER,)
    assert [image.image_id for image in found.images] == [other]


def test_a_record_of_an_id_that_nobody_else_names_is_listed_as_foreign(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    """As containerd leaves it when a removal is cut off."""
    image = build_image("linux/amd64", seed="left")
    left = str(image.manifests[0].config.digest)
    fake.pull(left, image, {"io.cri-containerd.image": "managed"})
    fake.pull("registry.example/named:1", build_image("linux/amd64", seed="named"))
    assert len(fake.images()) == 3
    assert publisher.status().foreign == (left,)


def test_others_records_that_lead_to_the_same_image_are_no_gap(here: PublishingNode, publisher: Publisher) -> None:
    here.pull()
    publisher.reconcile()
    here.fake.here.images[APP].labels.clear()
    assert list(states(here).values()) == [ImageState.PUBLISHED]
    with here.publisher() as looking:
        assert looking.status().foreign == (APP,)


def test_a_name_that_another_store_wants_too_is_foreign_and_no_gap(here: PublishingNode, publisher: Publisher) -> None:
    here.pull()
    publisher.reconcile()
    here.fake.here.images[APP].labels[STORE] = "another"
    found = publisher.status()
    assert ([image.state for image in found.images], found.foreign) == ([ImageState.PUBLISHED], (APP,))


def test_an_artifact_is_not_runnable_with_the_reason(tmp_path: Path) -> None:
    with (
        publishing_node(tmp_path, {APP: build_artifact("application/x", {"file": b"data"})}) as here,
        here.publisher() as publisher,
    ):
        here.pull()
        for _ in range(2):
            (image,) = publisher.status().images
            assert image.state is ImageState.NOT_RUNNABLE
            assert "artifact" in image.reason
            publisher.reconcile()


def test_a_failure_of_another_process_is_visible(here: PublishingNode, publisher: Publisher) -> None:
    image_id = here.pull()
    here.fake.faults.refuse("Diff/Apply", text="no space left on device")
    with pytest.raises(PublishError):
        publisher.publish(APP)
    publisher.note("")
    with here.publisher() as looking:
        found = looking.status()
        (image,) = found.images
        assert (image.image_id, image.state) == (image_id, ImageState.FAILED)
        assert "no space left on device" in image.reason
        assert image.next_try is not None
        assert found.process_id is not None
    publisher.publish(APP)
    publisher.note("")
    assert states(here) == {image_id: ImageState.PUBLISHED}


def test_while_containerd_is_away_the_other_process_is_believed(here: PublishingNode, publisher: Publisher) -> None:
    failed, wanted = here.pull(), here.pull(OTHER)
    here.fake.faults.refuse("Images/Create", text="no space left on device")
    with pytest.raises(PublishError):
        publisher.publish(APP)
    publisher.note("it is away")
    here.fake.kill()
    with here.publisher() as looking:
        found = looking.status()
    assert (found.is_connected, found.way, found.version) == (False, None, "")
    assert "killed" in found.reason
    assert {image.image_id: image.state for image in found.images} == {
        failed: ImageState.FAILED,
        wanted: ImageState.WANTED,
    }
    here.fake.start()


def test_a_publisher_that_is_refused_is_not_connected(here: PublishingNode, publisher: Publisher) -> None:
    publisher.note("records of another machine")
    with here.publisher() as looking:
        found = looking.status()
    assert (found.is_connected, found.reason) == (False, "records of another machine")


def test_a_look_beside_a_publisher_takes_its_word_for_the_way(here: PublishingNode, publisher: Publisher) -> None:
    here.pull()
    publisher.reconcile()
    publisher.note("")
    here.fake.faults.clear()
    with here.publisher() as looking:
        assert looking.status().way is ContentWay.LINKED
    assert here.fake.faults.calls["Leases/Create"] == 0
    assert here.fake.faults.calls["Content/Write"] == 0


def test_an_unreadable_state_is_a_warning(here: PublishingNode, publisher: Publisher) -> None:
    publisher.note("")
    (state,) = (here.store.root / "locks" / "publish").iterdir()
    state.write_bytes(b"{")
    with here.publisher() as looking:
        found = looking.status()
    assert any("expected a publisher's state" in each for each in found.warnings)
    assert found.process_id == 0


def test_a_snapshotter_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    with (
        publishing_node(tmp_path, rules=Rules(snapshotters=("overlayfs",))) as here,
        here.publisher() as publisher,
    ):
        here.pull(APP, KATA)
        found = publisher.status()
        assert found.warnings == ("runtime handler kata: containerd has no snapshotter native",)
        (image,) = found.images
        assert image.missing_snapshotters == ("native",)


def test_records_of_another_machine_are_a_warning(
    here: PublishingNode, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.pull()
    publisher.reconcile()
    publisher.close()
    monkeypatch.setattr("imagestore.publish.publisher.machine_mark", lambda _purpose: MachineMark("another"))
    with here.publisher() as elsewhere:
        assert any("--take-over" in each for each in elsewhere.status().warnings)
        with pytest.raises(PreconditionError):
            elsewhere.reconcile()


def test_a_follower_says_how_it_stands(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    fake.kill()
    follower = PublishFollower(publisher, lambda: contextlib.nullcontext(here.store), repair_seconds=600)
    follower.start()
    try:
        with here.publisher() as looking:
            until(lambda: "killed" in looking.status().reason, "it says that containerd is away")
            fake.start()
            until(lambda: looking.status().is_connected, "it says that containerd answers")
            image_id = here.pull()
            until(lambda: states(here) == {image_id: ImageState.PUBLISHED}, "it publishes")
            until(lambda: looking.status().images[0].ways, "it says how the layers came")
    finally:
        follower.close()


def test_file_systems_are_asked_for_now_and_then(fake: FakeContainerd, tmp_path: Path) -> None:
    """A containerd that is away is not asked by every caller, and what its folder's disk says stands in."""
    with contextlib.closing(Containerd(fake.address)) as client:
        found = ImageFileSystems(client, lambda: tmp_path / "not" / "there")
        fake.stop()
        (instead,) = found.now()
        assert instead.mountpoint == str(tmp_path)
        fake.start()
        calls = fake.faults.calls.total()
        assert found.now() == (instead,)
        assert fake.faults.calls.total() == calls
