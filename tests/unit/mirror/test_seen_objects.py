"""What is remembered of a bucket's objects, and for how long."""

from __future__ import annotations

from dataclasses import replace

from imagestore import Descriptor, Digest
from imagestore.mirror.seen_objects import SEEN_SECONDS, SeenObjects

BLOB = Descriptor("a/b", Digest.of(b"x"), 1)


def test_an_object_is_taken_to_be_there_for_a_minute_at_most() -> None:
    clock = [1000.0]
    seen = SeenObjects(clock=lambda: clock[0])
    assert SEEN_SECONDS <= 60.0
    assert not seen.has(BLOB)
    seen.note(BLOB)
    for _ in range(3):
        # Asking doesn't prolong it.
        clock[0] += SEEN_SECONDS / 4
        assert seen.has(BLOB)
    clock[0] += SEEN_SECONDS / 4
    assert not seen.has(BLOB)


def test_an_object_that_is_gone_is_forgotten_at_once() -> None:
    seen = SeenObjects(clock=lambda: 0.0)
    seen.note(BLOB)
    assert seen.has(replace(BLOB, media_type="c/d"))
    assert not seen.has(replace(BLOB, size=2))
    seen.forget(BLOB)
    seen.forget(BLOB)
    assert not seen.has(BLOB)


def test_the_memory_is_bounded() -> None:
    seen = SeenObjects(clock=lambda: 0.0)
    blobs = [Descriptor("a/b", Digest.of(str(number).encode()), 1) for number in range(20_000)]
    for blob in blobs:
        seen.note(blob)
    assert seen.has(blobs[-1])
    assert sum(map(seen.has, blobs)) <= 10_000
