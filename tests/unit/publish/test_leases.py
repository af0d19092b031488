"""An image's lease: made, taken over, replaced in time, ended when nobody has it."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import imagestore.publish.leases as leases
from imagestore.errors import NotFoundError
from imagestore.publish.containerd import Containerd
from tests.support.fake_containerd import FakeContainerd, fake_containerd

STORE, IMAGE = "0a" * 16, "sha256:" + "1" * 64
OWN = leases.lease_id(STORE, IMAGE)
HALF = leases.LIFETIME_SECONDS / 2
CONTENT, SNAPSHOT = ("content", "sha256:" + "2" * 64), ("snapshots/overlayfs", "sha256:" + "3" * 64)


@pytest.fixture
def now() -> list[float]:
    """Seconds since 1970, to be changed."""
    return [1e9]


@pytest.fixture
def fake(tmp_path: Path, now: list[float]) -> Iterator[FakeContainerd]:
    with fake_containerd(tmp_path / "c", clock=lambda: now[0]) as running:
        yield running


@pytest.fixture
def client(fake: FakeContainerd) -> Iterator[Containerd]:
    opened = Containerd(fake.address)
    yield opened
    opened.close()


def acquire(client: Containerd, now: list[float]) -> str:
    return leases.acquire(client, STORE, IMAGE, lambda: now[0])


def ends(fake: FakeContainerd, lease: str) -> float:
    text = fake.here.leases[lease].labels["containerd.io/gc.expire"]
    return datetime.datetime.fromisoformat(text).timestamp()


def test_a_new_one(client: Containerd, fake: FakeContainerd, now: list[float]) -> None:
    assert acquire(client, now) == OWN
    assert ends(fake, OWN) == now[0] + leases.LIFETIME_SECONDS
    assert OWN.startswith(leases.begin_of_ids(STORE))
    assert leases.lease_id(STORE, "sha256:" + "4" * 64) != OWN != leases.lease_id("0b" * 16, IMAGE)


def test_one_that_was_left_is_taken_over(client: Containerd, fake: FakeContainerd, now: list[float]) -> None:
    acquire(client, now)
    client.add_resource(OWN, *CONTENT)
    now[0] += HALF - 1
    assert acquire(client, now) == OWN
    assert fake.here.leases[OWN].resources == {CONTENT}


def test_one_that_is_half_run_down_is_replaced(client: Containerd, fake: FakeContainerd, now: list[float]) -> None:
    acquire(client, now)
    for resource in (CONTENT, SNAPSHOT):
        client.add_resource(OWN, *resource)
    now[0] += HALF + 1
    replacement = f"{OWN}-2"
    assert acquire(client, now) == replacement
    assert fake.leases() == {replacement}
    assert fake.here.leases[replacement].resources == {CONTENT, SNAPSHOT}
    assert ends(fake, replacement) == now[0] + leases.LIFETIME_SECONDS


def test_the_replacement_holds_before_the_old_one_ends(
    client: Containerd, fake: FakeContainerd, now: list[float]
) -> None:
    acquire(client, now)
    client.add_resource(OWN, *CONTENT)
    now[0] += HALF + 1

    def held() -> None:
        assert CONTENT in fake.here.leases[f"{OWN}-2"].resources
        fake.faults.calls["held"] += 1

    fake.faults.meanwhile("Leases/Delete", held)
    acquire(client, now)
    assert fake.faults.calls["held"] == 1


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize(
    "call", ["Leases/Create", "Leases/List", "Leases/ListResources", "Leases/AddResource", "Leases/Delete"]
)
def test_a_take_over_that_was_cut_off_is_finished_by_the_next(
    client: Containerd, fake: FakeContainerd, now: list[float], call: str, skip: int
) -> None:
    acquire(client, now)
    for resource in (CONTENT, SNAPSHOT):
        client.add_resource(OWN, *resource)
    now[0] += HALF + 1
    fake.faults.refuse(call, grpc.StatusCode.UNKNOWN, after=True, skip=skip)
    try:
        held = acquire(client, now)
    except Exception:  # noqa: BLE001 - where it was cut off is the parameters' matter
        fake.faults.clear()
        held = acquire(client, now)
    assert fake.leases() == {held}
    assert fake.here.leases[held].resources == {CONTENT, SNAPSHOT}


def test_one_that_ends_while_it_is_taken_over(client: Containerd, fake: FakeContainerd, now: list[float]) -> None:
    acquire(client, now)
    now[0] += HALF + 1
    fake.faults.meanwhile("Leases/ListResources", fake.here.leases.clear)
    with pytest.raises(NotFoundError):  # the publish begins again
        acquire(client, now)


@pytest.mark.parametrize("text", ["", "soon", "9999-99-99T00:00:00Z"])
def test_one_whose_end_can_not_be_read_is_replaced(
    client: Containerd, fake: FakeContainerd, now: list[float], text: str
) -> None:
    fake.state.create_lease("k8s.io", OWN, {"containerd.io/gc.expire": text} if text else {})
    assert acquire(client, now) == f"{OWN}-2"
    assert fake.leases() == {f"{OWN}-2"}


def test_names_that_only_look_alike_are_not_ours(client: Containerd, fake: FakeContainerd, now: list[float]) -> None:
    others = [f"{OWN}-x", f"{OWN}-", f"{OWN}-2-3", f"{OWN}2", f"{OWN}-\N{ARABIC-INDIC DIGIT TWO}"]
    for each in others:
        fake.state.create_lease("k8s.io", each, {})
    acquire(client, now)
    now[0] += HALF + 1
    assert acquire(client, now) == f"{OWN}-2"
    assert fake.leases() == {*others, f"{OWN}-2"}


def test_what_nobody_has_is_ended(client: Containerd, fake: FakeContainerd, now: list[float]) -> None:
    working, left = (f"sha256:{digit * 64}" for digit in "56")
    kept = [leases.lease_id(STORE, working), f"{leases.lease_id(STORE, working)}-2", "imagestore-other-1", "ctr"]
    ours = [leases.lease_id(STORE, left), f"{leases.begin_of_ids(STORE)}probe-1"]
    for each in (*kept, *ours):
        fake.state.create_lease("k8s.io", each, {})
    fake.state.add_resource("k8s.io", ours[0], "content", CONTENT[1])
    assert sorted(leases.end_left(client, STORE, lambda: [working])) == sorted(ours)
    assert fake.leases() == set(kept)
    assert leases.end_left(client, STORE, lambda: [working]) == []


def test_the_collector_runs_once_when_several_are_ended(client: Containerd, fake: FakeContainerd) -> None:
    collected = itertools.count()
    collect = fake.state.collect
    fake.state.collect = lambda: (next(collected), collect())  # type: ignore[method-assign,assignment]
    for digit in "567":
        fake.state.create_lease("k8s.io", leases.lease_id(STORE, digit), {})
    leases.end_left(client, STORE, list)
    assert next(collected) == 1


def test_an_expired_one_is_gone_after_a_collection(client: Containerd, fake: FakeContainerd, now: list[float]) -> None:
    acquire(client, now)
    now[0] += leases.LIFETIME_SECONDS + 1
    fake.collect()
    assert acquire(client, now) == OWN
