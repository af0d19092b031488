"""What a publisher says of its work to other processes: whole, for its owner only, and not believed when broken."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest

from imagestore.errors import StoreCorruptError
from imagestore.publish import ContentWay, ImageState, PublisherRunningError
from imagestore.publish.owner_lock import OwnerLock, owners
from imagestore.publish.owner_state import MOST_IMAGES, ImageNote, OwnerState, read, write
from tests.support.publishing import APP, PublishingNode

STATE = OwnerState(
    7,
    "unix:///run/c.sock",
    "k8s.io",
    reason="",
    way=ContentWay.OWN_FILE,
    way_reason="linked: no",
    images={
        "sha256:aa": ImageNote(ImageState.FAILED, "the disk is full", 12.5),
        "sha256:bb": ImageNote(ImageState.PUBLISHED, ways={ContentWay.LINKED: 3}),
    },
)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write(path, STATE)
    assert read(path) == STATE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_of_too_many_images_those_that_need_a_look_are_kept(tmp_path: Path) -> None:
    images = {f"sha256:{number}": ImageNote(ImageState.PUBLISHED) for number in range(MOST_IMAGES)}
    images["sha256:failed"] = ImageNote(ImageState.FAILED, "x" * 10_000, 1.0)
    write(tmp_path / "state.json", OwnerState(1, "", "", images=images))
    found = read(tmp_path / "state.json").images
    assert len(found) == MOST_IMAGES
    assert len(found["sha256:failed"].reason) < 1000


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        json.dumps({"processId": "x"}).encode(),
        json.dumps(
            {
                "processId": 1,
                "address": [],
                "namespace": "",
                "reason": "",
                "way": None,
                "wayReason": "",
                "images": {},
            }
        ).encode(),
    ],
    ids=["empty", "cut", "list", "no members", "no text", "deep", "no number", "no address"],
)
def test_a_broken_state_is_an_error_of_ours(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "state.json").write_bytes(text)
    with pytest.raises(StoreCorruptError, match=r"state\.json: expected a publisher's state"):
        read(tmp_path / "state.json")


def test_an_unknown_state_of_an_image_is_an_error_of_ours(tmp_path: Path) -> None:
    write(tmp_path / "state.json", STATE)
    text = (tmp_path / "state.json").read_text().replace('"failed"', '"resting"')
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(StoreCorruptError):
        read(tmp_path / "state.json")


def test_a_state_counts_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    lock, other = (OwnerLock(tmp_path, "unix:///run/c.sock", "k8s.io") for _ in range(2))
    assert other.owner() is None
    lock.acquire()
    lock.note(STATE)
    assert other.owner() == STATE
    assert owners(tmp_path) == [STATE]
    with pytest.raises(PublisherRunningError, match="process 7 publishes this store already") as refused:
        other.acquire()
    assert refused.value.process_id == 7
    lock.release()
    assert (other.owner(), owners(tmp_path)) == (None, [])
    other.acquire()
    other.release()


def test_a_state_that_a_killed_process_left_says_nothing(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path, "unix:///run/c.sock", "k8s.io")
    lock.acquire()
    lock.note(STATE)
    (state,) = (tmp_path / "locks" / "publish").iterdir()
    left = state.read_bytes()
    lock.release()
    state.write_bytes(left)
    assert (lock.owner(), owners(tmp_path)) == (None, [])
    lock.acquire()
    assert read(state).images == {}
    lock.release()


def test_a_broken_state_hides_neither_the_lock_nor_its_refusal(tmp_path: Path) -> None:
    lock, other = (OwnerLock(tmp_path, "unix:///run/c.sock", "k8s.io") for _ in range(2))
    lock.acquire()
    (state,) = (tmp_path / "locks" / "publish").iterdir()
    state.write_bytes(b"{")
    with pytest.raises(PublisherRunningError, match="another process") as refused:
        other.acquire()
    assert refused.value.process_id == 0
    state.unlink()
    assert other.owner() == OwnerState(0, "", "")
    lock.release()


def test_publishers_into_two_containerds_have_two_locks(tmp_path: Path) -> None:
    locks = [OwnerLock(tmp_path, f"unix:///run/{name}.sock", "k8s.io") for name in "ab"]
    for lock in locks:
        lock.acquire()
    assert {each.address for each in owners(tmp_path)} == {"unix:///run/a.sock", "unix:///run/b.sock"}
    for lock in locks:
        lock.release()


def test_a_state_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = OwnerLock(tmp_path, "unix:///run/c.sock", "k8s.io")
    lock.acquire()
    (state,) = (tmp_path / "locks" / "publish").iterdir()
    state.unlink()
    state.mkdir()
    with caplog.at_level(logging.WARNING):
        lock.note(STATE)
    assert "can't be written" in caplog.text
    state.rmdir()
    lock.release()


def test_a_collection_keeps_lock_and_state(here: PublishingNode) -> None:
    here.pull(APP)
    with here.publisher() as publisher:
        publisher.reconcile()
        publisher.note("a reason")
        here.store.collect_garbage()
        assert [each.reason for each in owners(here.store.root)] == ["a reason"]
    assert owners(here.store.root) == []
