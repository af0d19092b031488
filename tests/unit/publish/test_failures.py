"""Each step fails once, before or after it had its effect: the next publish converges, and no lease stays."""

from __future__ import annotations

import itertools

import grpc
import pytest

from imagestore.errors import ImageStoreError
from imagestore.publish import Publisher
from tests.support.publishing import APP, PublishingNode

#: Every call of a first publish.
CALLS = (
    *("Version/Version", "Introspection/Plugins", "Images/List", "Images/Create", "ImageService/ListImages"),
    *("Leases/Create", "Leases/List", "Leases/AddResource", "Leases/Delete", "ImageService/ImageStatus"),
    *("Snapshots/List", "Snapshots/Stat", "Snapshots/Prepare", "Snapshots/Commit", "Diff/Apply"),
    *("Content/Write", "Content/Write/STAT", "Content/Write/COMMIT", "Content/Read", "Content/Abort"),
)
LOST, BROKEN, LATE = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits long for the CRI plugin."""
    monkeypatch.setattr("imagestore.publish.publication.KNOWN_SECONDS", 0.2)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_once(here: PublishingNode, call: str) -> None:
    here.pull(APP)
    codes = itertools.cycle((LOST, BROKEN, LATE))
    for code, (skip, after) in zip(codes, itertools.product(range(3), (False, True)), strict=False):
        here.fake.faults.refuse(call, code, after=after, skip=skip)
        with here.publisher() as publisher:
            converges(here, publisher)
        here.fake.wipe()


def test_a_lease_that_ended_before_a_call(here: PublishingNode) -> None:
    here.pull(APP)
    for call, skip in itertools.product(CALLS, range(3)):
        here.fake.faults.meanwhile(call, here.fake.here.leases.clear, skip=skip)
        with here.publisher() as publisher:
            converges(here, publisher)
        here.fake.wipe()


@pytest.mark.parametrize("call", CALLS)
def test_a_containerd_that_is_killed_or_wiped_during_a_call(here: PublishingNode, call: str) -> None:
    here.pull(APP)
    for act, after, skip in itertools.product((here.fake.restart, here.fake.wipe), (False, True), range(2)):
        here.fake.faults.meanwhile(call, act, after=after, skip=skip)
        with here.publisher() as publisher:
            converges(here, publisher)
        here.fake.wipe()


def converges(here: PublishingNode, publisher: Publisher) -> None:
    """However the first try ended, one that nothing disturbs succeeds."""
    try:
        publisher.reconcile()
    except Exception as error:  # noqa: BLE001 - judged below
        assert isinstance(error, ImageStoreError)
    here.fake.faults.clear()
    assert publisher.reconcile().failed == {}
    assert here.unmet() == []
    here.fake.collect()
    assert here.unmet() == []
