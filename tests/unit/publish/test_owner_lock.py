"""One publisher for each store and containerd."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imagestore.errors import StoreBusyError
from imagestore.publish import PublisherRunningError
from imagestore.publish.owner_lock import OwnerLock


def test_one_holds_it(tmp_path: Path) -> None:
    first, second = OwnerLock(tmp_path, "a containerd", "k8s.io"), OwnerLock(tmp_path, "a containerd", "k8s.io")
    first.acquire()
    first.acquire()
    assert first.is_held
    with pytest.raises(PublisherRunningError, match=f"a containerd k8s.io: process {os.getpid()}") as refused:
        second.acquire()
    assert isinstance(refused.value, StoreBusyError)
    assert refused.value.process_id == os.getpid()
    first.release()
    first.release()
    second.acquire()
    second.release()
    assert [each for each in (tmp_path / "locks").rglob("*") if each.is_file()] == []


def test_another_containerd_has_another(tmp_path: Path) -> None:
    first, second = OwnerLock(tmp_path, "one", "k8s.io"), OwnerLock(tmp_path, "two", "k8s.io")
    first.acquire()
    second.acquire()
    assert first.is_held
    assert second.is_held


@pytest.mark.parametrize("text", [b"", b"no number", b"1" * 100])
def test_a_note_that_can_not_be_read(tmp_path: Path, text: bytes) -> None:
    first, second = OwnerLock(tmp_path, "it", "k8s.io"), OwnerLock(tmp_path, "it", "k8s.io")
    first.acquire()
    (note,) = (tmp_path / "locks").rglob("*.json")
    note.write_bytes(text)
    with pytest.raises(PublisherRunningError, match="another process") as refused:
        second.acquire()
    assert refused.value.process_id == 0
