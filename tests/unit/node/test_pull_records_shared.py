"""Several commands on one folder of pull records: none takes another's pull for one that was cut off."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from imagestore.cri import ServedImage
from imagestore.errors import StoreError
from imagestore.node.pull_record_files import PullRecordFiles, file_name
from imagestore.node.pull_record_manager import PullManager
from imagestore.node.pull_records import PulledRecord
from imagestore.node.pull_verification import CredentialVerification

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = "registry.example/team/app:1"
REF = "sha256:1"
NOW = 1_700_000_000
PRESENT = [ServedImage(REF, (IMAGE,), (), 1)]
#: Begins a pull, says so, and waits to be killed.
PULL = """
import sys, time
from pathlib import Path
from imagestore.node.pull_record_files import PullRecordFiles
lock = PullRecordFiles(Path(sys.argv[1])).begin(sys.argv[2])
print("under way", flush=True)
time.sleep(600)
"""


def manager(root: Path) -> PullManager:
    verification = CredentialVerification.parse("NeverVerifyPreloadedImages")
    return PullManager(PullRecordFiles(root), verification, clock=lambda: NOW)


def locks(root: Path) -> list[str]:
    return [path.name for path in (root / "image_manager" / "locks").iterdir()]


@pytest.mark.parametrize("end", ["failed", "pulled"])
def test_a_pull_that_ends_leaves_the_intent_of_another_commands_pull(tmp_path: Path, end: str) -> None:
    one, other = manager(tmp_path), manager(tmp_path)
    one.intend(IMAGE)
    other.intend(IMAGE)
    if end == "failed":
        other.failed(IMAGE)
    else:
        other.pulled(IMAGE, REF, None)
    files = PullRecordFiles(tmp_path)
    assert files.has_intent(IMAGE)
    one.failed(IMAGE)
    assert not files.has_intent(IMAGE)
    assert locks(tmp_path) == []


def test_at_start_the_intent_of_a_pull_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    one, files = manager(tmp_path), PullRecordFiles(tmp_path)
    one.intend(IMAGE)
    manager(tmp_path).start(PRESENT)  # an older image of that name
    assert files.has_intent(IMAGE)
    assert files.read(REF) is None
    one.failed(IMAGE)
    assert not files.has_intent(IMAGE)


def test_the_intent_of_a_command_that_was_killed_is_seen_to(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PULL, str(tmp_path), IMAGE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "under way\n"
        other, files = manager(tmp_path), PullRecordFiles(tmp_path)
        other.intend(IMAGE)
        other.failed(IMAGE)
        other.start(PRESENT)
        assert files.has_intent(IMAGE)
        killed.send_signal(signal.SIGKILL)
    assert other.judge(IMAGE, REF, list).must_pull
    other.start(PRESENT)
    assert not files.has_intent(IMAGE)
    assert files.read(REF) == PulledRecord(REF, NOW, {})
    assert other.judge(IMAGE, REF, list).must_pull
    assert locks(tmp_path) == []


def test_an_intent_that_stays_for_want_of_a_record_is_seen_to_later(tmp_path: Path) -> None:
    one, in_the_way = manager(tmp_path), tmp_path / "image_manager" / "pulled" / file_name(REF)
    one.intend(IMAGE)
    in_the_way.mkdir()
    one.pulled(IMAGE, REF, None)
    in_the_way.rmdir()
    files = PullRecordFiles(tmp_path)
    assert files.has_intent(IMAGE)
    manager(tmp_path).start(PRESENT)
    assert not files.has_intent(IMAGE)
    assert files.read(REF) is not None


def test_an_intent_is_there_whenever_a_pull_is(tmp_path: Path) -> None:
    missing: list[int] = []

    def work(number: int) -> None:
        keeper, files = manager(tmp_path), PullRecordFiles(tmp_path)
        for _ in range(60):
            keeper.intend(IMAGE)
            if not files.has_intent(IMAGE):
                missing.append(number)
            if number == 0:
                manager(tmp_path).start(PRESENT)
            keeper.failed(IMAGE)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missing == []
    assert PullRecordFiles(tmp_path).intents() == ([], [])
    assert locks(tmp_path) == []
    assert PullRecordFiles(tmp_path).read(REF) is None


def test_a_pull_that_cant_be_noted_leaves_no_lock(tmp_path: Path) -> None:
    files = PullRecordFiles(tmp_path)
    (tmp_path / "image_manager" / "pulling" / file_name(IMAGE)).mkdir()
    with pytest.raises(StoreError):
        files.begin(IMAGE)
    assert locks(tmp_path) == []
