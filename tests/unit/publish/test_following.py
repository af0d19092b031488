"""A publisher that follows the store and containerd: nothing but changes on either side, and all converges."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest

from imagestore import ImageStore, config
from imagestore.errors import StoreReadOnlyError
from imagestore.publish import ImageState
from imagestore.publish.following import PublishFollower
from imagestore.registry import connect
from tests.support.fake_containerd import FakeContainerd
from tests.support.patience import until
from tests.support.publishing import APP, ARM, CONFIG, HOST, KATA, OTHER, RUNC, PublishingNode, publishing_node


class Following:
    """A follower, and how often it said that something may have changed."""

    def __init__(self, here: PublishingNode, clock: Callable[[], float]) -> None:
        self.store = here.store
        self.looks = 0
        self.publisher = here.publisher(lend=self.lend, clock=clock)
        self.follower = PublishFollower(self.publisher, self.lend, repair_seconds=1e6, heard=self.heard)

    def lend(self) -> AbstractContextManager[ImageStore]:
        """The store of the moment."""
        return contextlib.nullcontext(self.store)

    def heard(self) -> None:
        """Called by the follower."""
        self.looks += 1

    def looked(self, times: int = 3) -> None:
        """Wait until it has gone round some times."""
        target = self.looks + times
        until(lambda: self.looks >= target, "it goes round")

    def connected(self) -> None:
        """Wait until it follows."""
        until(lambda: self.follower.is_connected, "connected")


@pytest.fixture(autouse=True)
def _haste(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("LOOK_SECONDS", 0.01),
        ("_FIRST_WAIT_SECONDS", 0.01),
        ("_LAST_WAIT_SECONDS", 0.05),
        ("_AWAY_SECONDS", 0.02),
        ("_PAUSE_SECONDS", 0.0),
        ("_SECOND_LOOK_SECONDS", 0.0),
    ):
        monkeypatch.setattr(f"imagestore.publish.following.{name}", seconds)


@pytest.fixture
def now() -> list[float]:
    """Seconds since 1970, to be changed."""
    return [1e9]


@pytest.fixture
def here(tmp_path: Path, now: list[float]) -> Iterator[PublishingNode]:
    with publishing_node(tmp_path, clock=lambda: now[0]) as opened:
        yield opened


@pytest.fixture
def following(here: PublishingNode, now: list[float]) -> Iterator[Following]:
    made = Following(here, lambda: now[0])
    made.follower.start()
    made.connected()
    yield made
    made.follower.close()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("publish-")]


def settled(here: PublishingNode) -> bool:
    """Whether containerd has what the store has."""
    return here.unmet() == []


def test_pulls_and_removals_are_followed(here: PublishingNode, following: Following, fake: FakeContainerd) -> None:
    host, guest = here.pull(APP, RUNC), here.pull(APP, ARM)
    until(lambda: fake.runs(host) and fake.runs(guest) and settled(here), "both run")
    here.store.remove(APP, runtime_handler=ARM)
    until(lambda: not fake.cri.resolve(guest), "the guest's image is gone")
    here.store.tag(APP, "registry.example/another:1")
    until(lambda: fake.cri.resolve("registry.example/another:1") == host, "tagged")


def test_changes_by_another_process_are_followed(
    here: PublishingNode, following: Following, fake: FakeContainerd, tmp_path: Path
) -> None:
    with (
        connect(transport=here.node.registry.transport) as client,
        ImageStore(tmp_path / "store", config=here.store.config, host=HOST, registry=client) as another,
    ):
        image_id = str(another.pull(APP).id)
        until(lambda: fake.runs(image_id) and settled(here), "it runs")
        another.remove(APP)
        until(lambda: fake.images() == {}, "it is gone")


def test_what_others_do_in_containerd_is_undone(
    here: PublishingNode, following: Following, fake: FakeContainerd
) -> None:
    image_id = here.pull()
    until(lambda: settled(here), "published")
    for name in sorted(fake.images()):
        fake.remove_image(name)
        until(lambda: settled(here), f"{name} is made again")
    fake.tag(APP, "registry.example/users:1")
    until(lambda: fake.runs("registry.example/users:1"), "a user's name stays")
    following.looked()
    assert fake.cri.resolve("registry.example/users:1") == image_id


def test_with_nothing_to_do_nothing_is_asked(here: PublishingNode, following: Following, fake: FakeContainerd) -> None:
    here.pull()
    until(lambda: settled(here), "published")
    until(lambda: following.publisher.states.counts()[ImageState.PUBLISHED] == 1, "known as published")
    following.looked()
    fake.faults.clear()
    following.looked(20)
    assert fake.faults.calls == {}


def test_events_of_another_namespace_are_nothing_here(
    here: PublishingNode, following: Following, fake: FakeContainerd
) -> None:
    here.pull()
    until(lambda: settled(here), "published")
    following.looked()
    fake.faults.clear()
    with fake.lock:
        fake.state.create_image("moby", APP, fake.here.images[APP].target, {})
    following.looked(20)
    assert fake.faults.calls == {}
    with fake.lock:
        fake.state.delete_image("moby", APP)


@pytest.mark.parametrize("how", ["restart", "wipe"])
def test_a_containerd_that_comes_back(
    here: PublishingNode, following: Following, fake: FakeContainerd, how: str
) -> None:
    here.pull(APP, RUNC)
    here.pull(OTHER, KATA)
    until(lambda: settled(here), "published")
    for _ in range(3):
        following.follower.reconciles = 0
        getattr(fake, how)()
        until(lambda: following.follower.reconciles, "compared")
        until(lambda: settled(here), "published again")
        following.connected()


def test_what_happened_while_it_was_away(here: PublishingNode, following: Following, fake: FakeContainerd) -> None:
    gone = here.pull(APP)
    until(lambda: settled(here), "published")
    fake.kill()
    until(lambda: not following.follower.is_connected, "away")
    assert following.follower.reason != ""
    here.store.remove(APP, runtime_handler=RUNC)
    here.pull(OTHER)
    fake.start()
    until(lambda: settled(here), "published")
    until(lambda: not fake.cri.resolve(gone), "removed")
    assert following.follower.reason == ""


def test_a_containerd_that_is_not_there_yet(here: PublishingNode, fake: FakeContainerd, now: list[float]) -> None:
    fake.stop()
    here.pull()
    made = Following(here, lambda: now[0])
    made.follower.start()
    until(lambda: made.looks, "it has looked")
    assert not made.follower.is_connected
    assert made.follower.reason != ""
    fake.start()
    until(lambda: settled(here), "published")
    made.connected()
    made.follower.close()


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.UNAVAILABLE,
    ],
    ids=lambda code: code.name,
)
@pytest.mark.parametrize("call", ["Images/List", "Events/Subscribe", "Version/Version", "Containers/List"])
def test_no_answer_ends_it(
    here: PublishingNode, following: Following, fake: FakeContainerd, call: str, code: grpc.StatusCode
) -> None:
    fake.faults.refuse(call, code, count=3)
    here.pull(APP)
    fake.restart()
    until(lambda: not fake.faults.is_any_left, "it has failed")
    until(lambda: settled(here), "published")
    following.connected()
    here.pull(OTHER)
    until(lambda: settled(here), "it still follows")


def test_a_fault_of_its_own_does_not_end_it(
    here: PublishingNode, following: Following, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called = threading.Event()

    def broken(*_: object, **__: object) -> None:
        called.set()
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(following.publisher, "begin_reconcile", broken)
        here.pull()
        called.wait()
    until(lambda: settled(here), "published")
    following.connected()
    assert "a comparison with containerd failed" in [each.message for each in caplog.records]


def test_a_failed_image_is_tried_again_when_it_is_due(
    here: PublishingNode, following: Following, fake: FakeContainerd, now: list[float]
) -> None:
    states = following.publisher.states
    fake.faults.refuse("Diff/Apply", grpc.StatusCode.UNKNOWN, count=2)
    image_id = here.pull()
    until(lambda: states.entry(image_id).state is ImageState.FAILED, "it fails")
    following.looked(10)
    assert fake.faults.calls["Diff/Apply"] == 1
    now[0] += 1
    until(lambda: fake.faults.calls["Diff/Apply"] == 2, "the second try")
    until(lambda: states.entry(image_id).state is ImageState.FAILED, "it fails")
    now[0] += 1
    following.looked(10)
    assert fake.faults.calls["Diff/Apply"] == 2
    now[0] += 1
    until(lambda: settled(here), "the third try")


def test_a_failed_image_does_not_keep_others(here: PublishingNode, following: Following, fake: FakeContainerd) -> None:
    fake.rules.snapshotters = ("overlayfs",)
    following.publisher.disconnected()
    bad, good = here.pull(APP, KATA), here.pull(OTHER, RUNC)
    until(lambda: fake.runs(good), "the good one runs")
    assert following.publisher.states.entry(bad).state is not ImageState.PUBLISHED
    following.connected()
    here.store.remove(APP, runtime_handler=KATA)
    here.store.remove(OTHER, runtime_handler=RUNC)
    until(lambda: fake.images() == {}, "nothing is left")


def test_images_of_containers_are_noted_as_in_use(
    here: PublishingNode, following: Following, fake: FakeContainerd
) -> None:
    image_id = here.pull()
    until(lambda: settled(here), "published")
    fake.start_container("c", image_id)
    with fake.lock:
        fake.publish("k8s.io", "/containers/create", "c")
    leases = here.store.metadata.leases
    until(lambda: any(each.id.startswith("in-use-") for each in leases.find()), "noted")
    fake.remove_container("c")


def test_another_publisher_of_the_store(here: PublishingNode, fake: FakeContainerd, now: list[float]) -> None:
    here.pull()
    first = here.publisher(clock=lambda: now[0])
    first.reconcile()
    made = Following(here, lambda: now[0])
    made.follower.start()
    until(lambda: "publishes this store already" in made.follower.reason, "it waits")
    first.close()
    made.connected()
    until(lambda: settled(here), "it follows")
    made.follower.close()


def test_reload_publishes_for_another_snapshotter(
    here: PublishingNode, following: Following, fake: FakeContainerd, tmp_path: Path
) -> None:
    image_id = here.pull()
    until(lambda: settled(here), "published")
    assert not fake.runs(image_id, "native")
    changed = config.loads(
        CONFIG.replace('default_runtime_name = "runc"', 'default_runtime_name = "runc"\nsnapshotter = "native"'),
        filename="config.toml",
        host=HOST,
    )
    with ImageStore(tmp_path / "store", config=changed, host=HOST) as store:
        following.store = store
        following.follower.reload()
        until(lambda: fake.runs(image_id, "native"), "unpacked in the other snapshotter")
        following.connected()
        following.store = here.store


def test_closing_does_not_wait_for_an_answer(here: PublishingNode, fake: FakeContainerd, now: list[float]) -> None:
    gate = threading.Event()
    made = Following(here, lambda: now[0])
    made.follower.start()
    made.connected()
    fake.faults.meanwhile("Images/List", gate.wait, count=100)
    fake.faults.meanwhile("Version/Version", gate.wait, count=100)
    here.pull()
    until(lambda: fake.faults.calls["Images/List"], "it asks")
    made.follower.close()
    gate.set()


def test_a_store_that_cannot_note_what_is_used_is_published_all_the_same(
    here: PublishingNode, following: Following, fake: FakeContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreReadOnlyError("the disk is mounted read-only")

    monkeypatch.setattr("imagestore.publish.following.note_images_in_use", refuse)
    image_id = here.pull()
    until(lambda: fake.runs(image_id), "it runs")
    fake.start_container("c", image_id)
    following.looked()
    assert following.follower.is_connected


def test_a_record_that_others_delete_is_doubted_at_once(
    here: PublishingNode, following: Following, fake: FakeContainerd
) -> None:
    image_id = here.pull()
    until(lambda: settled(here), "published")
    following.looked()
    epoch = following.publisher.states.epoch
    fake.remove_image(image_id)
    until(lambda: following.publisher.states.epoch != epoch, "doubted")
    until(lambda: settled(here), "made again")
