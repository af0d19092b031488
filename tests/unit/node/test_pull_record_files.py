"""The files of pull records: their form, their caches, damaged ones, and which a collection deletes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from typing import TYPE_CHECKING

import pytest

from imagestore.errors import StoreCorruptError, StoreError
from imagestore.node import pull_records
from imagestore.node.credentials import ServiceAccountSource
from imagestore.node.metrics import NodeMetrics
from imagestore.node.pull_record_files import PullRecordFiles, file_name
from imagestore.node.pull_record_manager import PullManager
from imagestore.node.pull_records import PullCredentials, PulledRecord, RecordedSecret
from imagestore.node.pull_verification import CredentialVerification

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = "registry.example/team/app:1"
REF = "sha256:1"
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


def test_files_are_named_and_written_as_the_kubelets(tmp_path: Path) -> None:
    secret = RecordedSecret("default", "pull-secret", "uid", "hash")
    account = ServiceAccountSource("default", "robot", "uid")
    files = PullRecordFiles(tmp_path)
    files.begin("busybox").release()
    files.write(
        PulledRecord(
            "ref",
            NOW,
            {"b": PullCredentials(is_node_accessible=True), "a": PullCredentials(False, (secret,), (account,))},
        )
    )
    intent = tmp_path / "image_manager/pulling" / file_name("busybox")
    assert intent.name == "sha256-" + hashlib.sha256(b"busybox").hexdigest()
    assert json.loads(intent.read_text()) == {
        "kind": "ImagePullIntent",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "image": "busybox",
    }
    text = (tmp_path / "image_manager/pulled" / file_name("ref")).read_text()
    assert text == (
        '{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1",'
        '"lastUpdatedTime":"2023-11-14T22:13:20Z","imageRef":"ref","credentialMapping":{'
        '"a":{"kubernetesSecrets":[{"uid":"uid","namespace":"default","name":"pull-secret","credentialHash":"hash"}],'
        '"kubernetesServiceAccounts":[{"uid":"uid","namespace":"default","name":"robot"}]},'
        '"b":{"nodePodsAccessible":true}}}\n'
    )
    assert (intent.stat().st_mode & 0o777, intent.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_files_of_other_processes_are_seen(tmp_path: Path) -> None:
    one, other = PullRecordFiles(tmp_path), PullRecordFiles(tmp_path)
    one.begin(IMAGE).release()
    assert other.has_intent(IMAGE)
    other.delete_intent(IMAGE)
    assert not one.has_intent(IMAGE)
    other.write(PulledRecord(REF, 1, {}))
    assert one.read(REF) == PulledRecord(REF, 1, {})
    other.write(PulledRecord(REF, 2, {}))
    assert one.read(REF) == PulledRecord(REF, 2, {})
    other.delete(REF)
    assert one.read(REF) is None


HEAD = '{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1"'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1"}',
        '{"kind":"ImagePulledRecord","apiVersion":"other/v1"}',
        HEAD + ',"more":1}',
        HEAD + ',"lastUpdatedTime":"yesterday"}',
        HEAD + ',"lastUpdatedTime":"2026-13-45T00:00:00Z"}',
        HEAD + ',"lastUpdatedTime":"9999-12-31T23:59:59-23:00"}',
        HEAD + ',"lastUpdatedTime":"0001-01-01T00:00:00+01:00"}',
        HEAD + ',"credentialMapping":{"a":[]}}',
        HEAD + ',"credentialMapping":{"a":{"x":1}}}',
        HEAD + ',"credentialMapping":{"a":{"kubernetesSecrets":[{"uid":1}]}}}',
        HEAD + ',"credentialMapping":{"a":{"kubernetesSecrets":{}}}}',
    ],
)
def test_damaged_records_are_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(StoreCorruptError):
        pull_records.parse_record(text.encode(), "record")
    folder = tmp_path / "image_manager" / "pulled"
    files = PullRecordFiles(tmp_path)
    (folder / file_name("x")).write_text(text)
    (folder / "other").write_text(text)
    (folder / (file_name("y") + ".tmp")).write_text(text)
    found, faults = files.records()
    assert (found, len(faults)) == ([], 1)
