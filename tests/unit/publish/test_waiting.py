"""Waiting beside a running publisher, until containerd has what the store wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from imagestore import CancelToken
from imagestore.errors import DeadlineExceededError, ServiceUnavailableError
from imagestore.publish import Publisher, PublishError, PublisherRunningError, ReconcileReport
from imagestore.testing import build_artifact
from tests.support.fake_containerd import FakeContainerd
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.publishing import APP, ARM, OTHER, RUNC, PublishingNode, publishing_node


@pytest.fixture
def second(here: PublishingNode, publisher: Publisher) -> Iterator[Publisher]:
    """A publisher beside the one that publishes."""
    publisher.note("")
    with here.publisher() as opened:
        yield opened


@pytest.fixture
def begin() -> Iterator[Callable[[Callable[[], ReconcileReport | None]], Future[ReconcileReport | None]]]:
    """Waits in a thread."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def token() -> CancelToken:
    return CancelToken(PATIENCE_SECONDS)


def test_there_is_one_publisher(here: PublishingNode, second: Publisher) -> None:
    here.pull()
    with pytest.raises(PublisherRunningError):
        second.reconcile()
    with pytest.raises(PublisherRunningError):
        second.publish_images(set())
    with pytest.raises(PublisherRunningError):
        second.unpublish_all()


def test_without_a_running_publisher_nothing_is_waited_for(here: PublishingNode, publisher: Publisher) -> None:
    here.pull()
    assert publisher.wait_for_owner(cancel=token()) is None


def test_what_is_done_already_is_reported_at_once(here: PublishingNode, publisher: Publisher) -> None:
    here.pull()
    publisher.reconcile()
    with here.publisher() as second:
        assert second.wait_for_owner(cancel=token()) == ReconcileReport(unchanged=1)


def test_it_waits_until_all_is_published_and_taken_away(
    here: PublishingNode,
    publisher: Publisher,
    second: Publisher,
    begin: Callable[[Callable[[], ReconcileReport | None]], Future[ReconcileReport | None]],
) -> None:
    gone = here.pull(OTHER)
    publisher.reconcile()
    here.store.remove(OTHER)
    image_id = here.pull()
    here.fake.faults.clear()
    waiting = begin(lambda: second.wait_for_owner(cancel=token()))
    until(lambda: here.fake.faults.calls["Images/List"] > 1, "it has looked")
    publisher.reconcile()
    report = waiting.result()
    assert report is not None
    assert report.published == (image_id,)
    assert {gone, OTHER} <= set(report.removed)
    assert (report.unchanged, report.failed) == (0, {})


def test_of_some_images_only_these_are_waited_for(
    here: PublishingNode,
    publisher: Publisher,
    second: Publisher,
    begin: Callable[[Callable[[], ReconcileReport | None]], Future[ReconcileReport | None]],
) -> None:
    image_id = here.pull(APP, ARM)
    here.pull(OTHER)
    waiting = begin(lambda: second.wait_for_owner({image_id}, cancel=token()))
    publisher.publish(APP, runtime_handler=ARM)
    assert waiting.result() == ReconcileReport(published=(image_id,)) or waiting.result() == ReconcileReport(
        unchanged=1
    )


def test_a_failure_of_the_other_process_ends_the_wait(
    here: PublishingNode,
    publisher: Publisher,
    second: Publisher,
    begin: Callable[[Callable[[], ReconcileReport | None]], Future[ReconcileReport | None]],
) -> None:
    image_id = here.pull()
    here.fake.faults.refuse("Diff/Apply", text="no space left on device")
    waiting = begin(lambda: second.wait_for_owner(cancel=token()))
    until(lambda: here.fake.faults.calls["Images/List"], "it has looked")
    with pytest.raises(PublishError):
        publisher.publish(APP)
    publisher.note("")
    report = waiting.result()
    assert report is not None
    assert "no space left on device" in report.failed[image_id]


def test_an_earlier_failure_gets_its_next_try_until_the_time_is_over(
    here: PublishingNode, publisher: Publisher, second: Publisher
) -> None:
    image_id = here.pull()
    here.fake.faults.refuse("Diff/Apply", text="no space left on device")
    with pytest.raises(PublishError):
        publisher.publish(APP)
    publisher.note("")
    report = second.wait_for_owner(cancel=CancelToken(0.0))
    assert report is not None
    assert report.failed.keys() == {image_id}


def test_what_is_late_names_the_process(here: PublishingNode, second: Publisher) -> None:
    image_id = here.pull()
    with pytest.raises(DeadlineExceededError, match=f"process [0-9]+ publishes this store .* {image_id}"):
        second.wait_for_owner(cancel=CancelToken(0.0))


def test_it_returns_when_the_other_process_ends(
    here: PublishingNode,
    publisher: Publisher,
    second: Publisher,
    begin: Callable[[Callable[[], ReconcileReport | None]], Future[ReconcileReport | None]],
) -> None:
    image_id = here.pull()
    waiting = begin(lambda: second.wait_for_owner(cancel=token()))
    until(lambda: here.fake.faults.calls["Images/List"], "it has looked")
    publisher.close()
    assert waiting.result() is None
    assert second.reconcile().published == (image_id,)


def test_an_artifact_ends_the_wait(tmp_path: Path) -> None:
    images = {APP: build_artifact("application/x", {"file": b"data"})}
    with publishing_node(tmp_path, images) as here, here.publisher() as publisher, here.publisher() as second:
        image_id = here.pull()
        publisher.reconcile()
        publisher.note("")
        report = second.wait_for_owner(cancel=token())
        assert report is not None
        assert report.not_runnable.keys() == {image_id}
        assert (report.published, report.failed) == ((), {})


def test_names_of_others_are_not_waited_for(here: PublishingNode, publisher: Publisher, fake: FakeContainerd) -> None:
    """One that leads to the same image, and one that another store on this containerd wants, too."""
    here.pull()
    publisher.reconcile()
    fake.here.images[APP].labels.clear()
    with here.publisher() as second:
        assert second.wait_for_owner(cancel=token()) == ReconcileReport(unchanged=1)


def test_containerd_away_ends_the_wait(here: PublishingNode, second: Publisher) -> None:
    here.pull()
    here.fake.kill()
    with pytest.raises(ServiceUnavailableError):
        second.wait_for_owner(cancel=token())


def test_cancelling_a_publisher_ends_its_calls(here: PublishingNode, publisher: Publisher) -> None:
    here.pull()
    blocked, go_on = threading.Event(), threading.Event()

    def _block() -> None:
        blocked.set()
        go_on.wait(PATIENCE_SECONDS)

    here.fake.faults.meanwhile("Images/List", _block)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(publisher.reconcile)
        blocked.wait(PATIENCE_SECONDS)
        publisher.cancel("Ctrl-C")
        assert "Ctrl-C" in str(running.exception(PATIENCE_SECONDS))
        go_on.set()


def test_some_images_are_published_and_nothing_is_taken_away(here: PublishingNode, publisher: Publisher) -> None:
    gone = here.pull(OTHER)
    publisher.reconcile()
    here.store.remove(OTHER)
    image_id, arm = here.pull(APP, RUNC), here.pull(APP, ARM)
    heard: list[object] = []
    report = publisher.publish_images({image_id}, observer=heard.append)
    assert (report.published, report.removed, report.unchanged) == ((image_id,), (), 0)
    assert len(heard) == 1
    assert gone in here.fake.images()
    assert arm not in here.fake.images()
    assert publisher.publish_images({image_id}) == ReconcileReport(unchanged=1)
