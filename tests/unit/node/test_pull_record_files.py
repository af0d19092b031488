"""Which pull records go after a collection, and what becomes of files that were being written."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from imagestore.errors import StoreError
from imagestore.node.metrics import NodeMetrics
from imagestore.node.pull_record_files import PullRecordFiles, file_name
from imagestore.node.pull_record_manager import PullManager
from imagestore.node.pull_records import PulledRecord
from imagestore.node.pull_verification import CredentialVerification

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

IMAGE = "registry.example/team/app:1"
NOW = 1_700_000_000


def manager(root: Path, metrics: NodeMetrics | None = None) -> PullManager:
    verification = CredentialVerification.parse("AlwaysVerify")
    return PullManager(PullRecordFiles(root), verification, metrics=metrics, clock=lambda: NOW)


def refs(root: Path) -> list[str]:
    return sorted(record.image_ref for record in PullRecordFiles(root).records()[0])


def test_a_pull_in_the_second_in_which_the_collection_began_keeps_its_record(tmp_path: Path) -> None:
    files = PullRecordFiles(tmp_path)
    files.write(PulledRecord("older", 19, {}))
    files.write(PulledRecord("same-second", 20, {}))
    manager(tmp_path).prune((), before=20.3)
    assert refs(tmp_path) == ["same-second"]


def test_a_pull_again_during_the_collection_keeps_its_record(tmp_path: Path) -> None:
    PullRecordFiles(tmp_path).write(PulledRecord("again", 10, {}))
    keeper = manager(tmp_path)
    for _ in range(2):
        keeper.intend(IMAGE)
        keeper.pulled(IMAGE, "again", None)
    keeper.prune((), before=NOW - 5)
    assert refs(tmp_path) == ["again"]


def test_a_pull_that_proves_nothing_new_keeps_its_record_too(tmp_path: Path) -> None:
    keeper = manager(tmp_path)
    keeper.intend(IMAGE)
    keeper.pulled(IMAGE, "again", None)
    (record,) = PullRecordFiles(tmp_path).records()[0]
    PullRecordFiles(tmp_path).write(PulledRecord("again", 10, record.credentials))
    keeper.intend(IMAGE)
    keeper.pulled(IMAGE, "again", None)
    keeper.prune((), before=NOW - 5)
    assert refs(tmp_path) == ["again"]


def test_a_pull_whose_record_cant_be_written_leaves_its_intent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without either, the image would count as one that was here before, which every pod may use."""
    keeper = manager(tmp_path)
    keeper.intend(IMAGE)
    (tmp_path / "image_manager" / "pulled" / file_name("new")).mkdir()
    keeper.pulled(IMAGE, "new", None)
    assert PullRecordFiles(tmp_path).intents() == ([IMAGE], [])
    assert "pulled record of new: " in caplog.text


def test_what_cant_be_pruned_is_logged_and_hides_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = PullRecordFiles(tmp_path)
    files.write(PulledRecord("stays", 10, {}))
    files.write(PulledRecord("goes", 10, {}))
    path = tmp_path / "image_manager" / "pulled" / file_name("stays")
    delete = PullRecordFiles.delete

    class Stubborn(PullRecordFiles):
        def delete(self, image_ref: str) -> None:
            if image_ref == "stays":
                path.rename(path.with_suffix(".kept"))
                path.mkdir()  # what is no file can't be unlinked
            delete(self, image_ref)

    with caplog.at_level(logging.WARNING):
        PullManager(Stubborn(tmp_path), CredentialVerification()).prune((), before=20)
    assert refs(tmp_path) == ["stays"]
    assert "pulled record of stays stays: " in caplog.text


def test_a_folder_that_cant_be_listed_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper = manager(tmp_path, NodeMetrics())
    (tmp_path / "image_manager" / "pulled").rmdir()
    with caplog.at_level(logging.WARNING):
        keeper.prune((), before=20)
        keeper.failed(IMAGE)
    assert "pulled records stay: " in caplog.text
    assert "pull records can't be counted: " in caplog.text


def test_two_agents_may_note_a_pull_of_one_image_at_once(tmp_path: Path) -> None:
    faults: list[StoreError] = []

    def work() -> None:
        files = PullRecordFiles(tmp_path)
        try:
            for _ in range(300):
                files.begin(IMAGE).release()
        except StoreError as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert [path.name for path in (tmp_path / "image_manager" / "pulling").iterdir()] == [file_name(IMAGE)]


def test_at_start_what_ended_processes_left_is_deleted(tmp_path: Path) -> None:
    keeper = manager(tmp_path)
    left, fresh = (tmp_path / "image_manager" / "pulled" / f"{file_name(IMAGE)}.{number}.tmp" for number in (1, 2))
    for path in (left, fresh):
        path.write_text("{")
    os.utime(left, (NOW, NOW))
    keeper.start(())
    assert (left.exists(), fresh.exists()) == (False, True)
