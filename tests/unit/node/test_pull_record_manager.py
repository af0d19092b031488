"""Pull records: the files, the decision, the merging."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore.cri import ServedImage
from imagestore.errors import ConfigError, StoreCorruptError
from imagestore.node.credentials import SecretSource, ServiceAccountSource, TrackedCredential
from imagestore.node.metrics import NodeMetrics
from imagestore.node.pull_record_files import PullRecordFiles, file_name
from imagestore.node.pull_record_manager import MOST_SECRETS_LEARNED, PullManager
from imagestore.node.pull_records import PullCredentials, PulledRecord, RecordedSecret
from imagestore.node.pull_verification import CredentialVerification
from imagestore.registry import AuthConfig

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

IMAGE = "registry.example/team/app:1"
REPOSITORY = "registry.example/team/app"


REF = "sha256:1"
DIGEST = "sha256:" + "a" * 64
NOW = 1_700_000_000


def credential(user: str, source: SecretSource | ServiceAccountSource | None) -> TrackedCredential:
    return TrackedCredential(AuthConfig(username=user), source)


MINE = credential("mine", SecretSource("ns", "pull", "u1"))
RENEWED = credential("renewed", SecretSource("ns", "pull", "u1"))
COPIED = credential("mine", SecretSource("other", "copy", "u2"))
FOREIGN = credential("foreign", SecretSource("other", "pull", "u3"))
ACCOUNT = credential("token", ServiceAccountSource("ns", "robot", "s1"))
NODE = credential("node", None)


def manager(root: Path, policy: str = "AlwaysVerify", metrics: NodeMetrics | None = None) -> PullManager:
    files = PullRecordFiles(root)
    return PullManager(files, CredentialVerification.parse(policy), metrics=metrics, clock=lambda: NOW)


def pulled(root: Path, *used: TrackedCredential | None, image: str = IMAGE) -> None:
    for each in used:
        keeper = manager(root)
        keeper.intend(image)
        keeper.pulled(image, REF, each)


@pytest.mark.parametrize(
    ("used", "asks", "must_pull", "result"),
    [
        ([], [MINE], True, "mustAuthenticate"),
        ([None], [], False, "credentialRecordFound"),
        ([NODE], [FOREIGN], False, "credentialRecordFound"),
        ([MINE], [MINE], False, "credentialRecordFound"),
        ([MINE], [], True, "mustAuthenticate"),
        ([MINE], [FOREIGN], True, "mustAuthenticate"),
        ([MINE], [COPIED], False, "credentialRecordFound"),
        ([MINE], [RENEWED], False, "credentialRecordFound"),
        ([MINE], [ACCOUNT], True, "mustAuthenticate"),
        ([MINE], [NODE], True, "mustAuthenticate"),
        ([ACCOUNT], [ACCOUNT], False, "credentialRecordFound"),
        ([ACCOUNT], [MINE], True, "mustAuthenticate"),
        ([MINE, ACCOUNT], [FOREIGN, ACCOUNT], False, "credentialRecordFound"),
        ([MINE, None], [FOREIGN], False, "credentialRecordFound"),
    ],
)
def test_who_may_use_an_image(
    tmp_path: Path,
    used: Sequence[TrackedCredential | None],
    asks: Sequence[TrackedCredential],
    must_pull: bool,
    result: str,
) -> None:
    metrics = NodeMetrics()
    pulled(tmp_path, *used)
    verdict = manager(tmp_path, metrics=metrics).judge(IMAGE, REF, lambda: asks)
    assert (verdict.must_pull, verdict.result) == (must_pull, result)
    assert (
        metrics.registry.get_sample_value("kubelet_imagemanager_image_mustpull_checks_total", {"result": result}) == 1
    )


def test_another_repository_of_the_same_image_must_be_pulled(tmp_path: Path) -> None:
    pulled(tmp_path, MINE)
    assert manager(tmp_path).judge("registry.example/other/app:1", REF, lambda: [MINE]).must_pull
    assert not manager(tmp_path).judge(f"{REPOSITORY}:2", REF, lambda: [MINE]).must_pull


@pytest.mark.parametrize(
    ("key", "image", "must_pull"),
    [
        ("app", "app", False),
        ("app", "app:1", False),
        ("app", f"app:1@{DIGEST}", False),
        ("docker.io/library/app", "app:1", False),
        ("docker.io/team/app", "team/app", False),
        ("docker.io/library/app", "index.docker.io/library/app", False),
        ("index.docker.io/library/app", "index.docker.io/library/app", False),
        ("debian", "app", True),
        ("app:1", "app:1", True),
    ],
)
def test_records_of_newer_and_older_kubelets_are_found(tmp_path: Path, key: str, image: str, must_pull: bool) -> None:
    PullRecordFiles(tmp_path).write(PulledRecord(REF, NOW, {key: PullCredentials(is_node_accessible=True)}))
    assert manager(tmp_path).judge(image, REF, list).must_pull is must_pull


def test_a_record_is_written_under_the_name_as_written(tmp_path: Path) -> None:
    old = PullCredentials(secrets=(RecordedSecret("ns", "pull", "u1", MINE.hash),))
    PullRecordFiles(tmp_path).write(PulledRecord(REF, NOW, {"docker.io/library/app": old}))
    pulled(tmp_path, FOREIGN, image=f"app:1@{DIGEST}")
    record = PullRecordFiles(tmp_path).read(REF)
    assert record is not None
    assert set(record.credentials) == {"app", "docker.io/library/app"}
    # Who is in either entry may use it.
    assert not manager(tmp_path).judge("app:2", REF, lambda: [MINE]).must_pull
    assert not manager(tmp_path).judge("app:2", REF, lambda: [FOREIGN]).must_pull


def test_no_ref_means_pull_without_a_check(tmp_path: Path) -> None:
    verdict = manager(tmp_path, "NeverVerify").judge(IMAGE, "", list)
    assert (verdict.must_pull, verdict.result) == (True, "")


def test_matching_secrets_are_learned(tmp_path: Path) -> None:
    pulled(tmp_path, MINE)
    assert not manager(tmp_path).judge(IMAGE, REF, lambda: [COPIED]).must_pull
    record = PullRecordFiles(tmp_path).read(REF)
    assert record is not None
    assert [each.name for each in record.credentials[REPOSITORY].secrets] == ["pull", "copy"]
    assert not manager(tmp_path).judge(IMAGE, REF, lambda: [RENEWED]).must_pull
    record = PullRecordFiles(tmp_path).read(REF)
    assert record is not None
    assert RENEWED.hash in [each.credential_hash for each in record.credentials[REPOSITORY].secrets]


def test_a_full_record_learns_no_more(tmp_path: Path) -> None:
    secrets = tuple(RecordedSecret("ns", f"s{n:03}", str(n), f"hash{n}") for n in range(MOST_SECRETS_LEARNED - 1))
    mine = RecordedSecret("ns", "pull", "u1", MINE.hash)
    files = PullRecordFiles(tmp_path)
    files.write(PulledRecord(REF, NOW, {REPOSITORY: PullCredentials(secrets=(*secrets, mine))}))
    before = files.read(REF)
    assert not manager(tmp_path).judge(IMAGE, REF, lambda: [COPIED]).must_pull
    assert files.read(REF) == before


@pytest.mark.parametrize("count", [MOST_SECRETS_LEARNED - 1, MOST_SECRETS_LEARNED, MOST_SECRETS_LEARNED + 1])
def test_a_secret_with_new_content_proves_itself_where_the_record_is_full(tmp_path: Path, count: int) -> None:
    """As in the kubelet: what can't be noted isn't believed, else any later content would be."""
    secrets = tuple(RecordedSecret("ns", f"s{n:03}", str(n), f"hash{n}") for n in range(count - 1))
    mine = RecordedSecret("ns", "pull", "u1", MINE.hash)
    files = PullRecordFiles(tmp_path)
    files.write(PulledRecord(REF, NOW, {REPOSITORY: PullCredentials(secrets=(*secrets, mine))}))
    keeper = manager(tmp_path)
    assert not keeper.judge(IMAGE, REF, lambda: [MINE]).must_pull
    verdict = keeper.judge(IMAGE, REF, lambda: [RENEWED])
    is_full = count >= MOST_SECRETS_LEARNED
    assert (verdict.must_pull, verdict.result) == (is_full, "mustAuthenticate" if is_full else "credentialRecordFound")


def test_an_empty_hash_proves_nothing(tmp_path: Path) -> None:
    files = PullRecordFiles(tmp_path)
    files.write(PulledRecord(REF, NOW, {REPOSITORY: PullCredentials(secrets=(RecordedSecret("a", "b", "c"),))}))
    assert manager(tmp_path).judge(IMAGE, REF, lambda: [FOREIGN]).must_pull


def test_records_that_cant_be_read_mean_pull(tmp_path: Path) -> None:
    pulled(tmp_path, None)
    (tmp_path / "image_manager" / "pulled" / file_name(REF)).write_text("{")
    verdict = manager(tmp_path).judge(IMAGE, REF, list)
    assert (verdict.must_pull, verdict.result) == (True, "error")


def test_credentials_are_asked_for_only_when_they_decide(tmp_path: Path) -> None:
    def never() -> Sequence[TrackedCredential]:
        raise AssertionError("asked")

    pulled(tmp_path, None)
    assert not manager(tmp_path).judge(IMAGE, REF, never).must_pull
    assert manager(tmp_path).judge(IMAGE, "sha256:2", never).must_pull

    def broken() -> Sequence[TrackedCredential]:
        raise ConfigError("secret a/b: broken")

    pulled(tmp_path, MINE, image="registry.example/third/app:1")
    with pytest.raises(ConfigError):
        manager(tmp_path).judge("registry.example/third/app:1", REF, broken)


def test_an_intent_counts_as_known(tmp_path: Path) -> None:
    policy = "NeverVerifyPreloadedImages"
    assert not manager(tmp_path, policy).judge(IMAGE, REF, list).must_pull
    PullRecordFiles(tmp_path).begin(IMAGE).release()
    assert manager(tmp_path, policy).judge(IMAGE, REF, list).must_pull


def test_an_intent_lasts_as_long_as_its_last_pull(tmp_path: Path) -> None:
    keeper, files = manager(tmp_path), PullRecordFiles(tmp_path)
    keeper.intend(IMAGE)
    keeper.intend(IMAGE)
    keeper.failed(IMAGE)
    assert files.has_intent(IMAGE)
    keeper.failed(IMAGE)
    assert not files.has_intent(IMAGE)


def test_at_start_files_of_older_versions_become_todays(tmp_path: Path) -> None:
    pulled(tmp_path, MINE)
    PullRecordFiles(tmp_path).begin("registry.example/gone:1").release()
    folder = tmp_path / "image_manager"
    paths = [folder / "pulled" / file_name(REF), folder / "pulling" / file_name("registry.example/gone:1")]
    todays = [path.read_bytes() for path in paths]
    for path, data in zip(paths, todays, strict=True):
        path.write_bytes(data.replace(b"v1beta1", b"v1alpha1").rstrip())
    unreadable = folder / "pulled" / file_name("other")
    unreadable.write_bytes(b"{}")
    manager(tmp_path).start([])
    assert [path.read_bytes() for path in paths] == todays
    assert unreadable.read_bytes() == b"{}"


def test_a_file_that_is_too_large_is_a_fault_and_hides_no_other(tmp_path: Path) -> None:
    pulled(tmp_path, MINE)
    PullRecordFiles(tmp_path).begin(IMAGE).release()
    for folder in ("pulled", "pulling"):
        (tmp_path / "image_manager" / folder / file_name("large")).write_bytes(b" " * (4 * 1024 * 1024 + 1))
    files = PullRecordFiles(tmp_path)
    (records, faults), (intents, more) = files.records(), files.intents()
    assert ([record.image_ref for record in records], intents) == ([REF], [IMAGE])
    assert [type(fault) for fault in (*faults, *more)] == [StoreCorruptError] * 2
    keeper = manager(tmp_path)
    keeper.start([])
    keeper.prune([], before=NOW + 1)
    assert files.records()[0] == []


def test_at_start_intents_of_present_images_become_records_without_credentials(tmp_path: Path) -> None:
    before = PullRecordFiles(tmp_path)
    for image in (IMAGE, "registry.example/gone:1"):
        before.begin(image).release()
    metrics = NodeMetrics()
    after = manager(tmp_path, metrics=metrics)
    after.start([ServedImage(REF, (IMAGE,), (), 1)])
    files = PullRecordFiles(tmp_path)
    assert files.read(REF) == PulledRecord(REF, NOW, {})
    assert files.intents() == (["registry.example/gone:1"], [])
    assert after.judge(IMAGE, REF, lambda: [MINE]).must_pull
    assert "kubelet_imagemanager_ondisk_pullintents 1" in metrics.text()
    assert "kubelet_imagemanager_ondisk_pulledrecords 1" in metrics.text()


@pytest.mark.parametrize(
    "written",
    ["app", "app:latest", "library/app", "index.docker.io/library/app", f"docker.io/library/app:latest@{DIGEST}"],
)
def test_at_start_an_intent_is_known_by_its_complete_name(tmp_path: Path, written: str) -> None:
    PullRecordFiles(tmp_path).begin(written).release()
    complete = "docker.io/library/app"
    after = manager(tmp_path, "NeverVerifyPreloadedImages")
    after.start([ServedImage(REF, (f"{complete}:latest",), (f"{complete}@{DIGEST}",), 1)])
    assert PullRecordFiles(tmp_path).intents() == ([], [])
    # Whoever spells it another way must not take it for an image that was always here.
    assert after.judge(f"{complete}:latest", REF, list).must_pull


def test_pruning_spares_what_is_there_and_what_is_new(tmp_path: Path) -> None:
    files = PullRecordFiles(tmp_path)
    for ref, moment in (("old", 10), ("there", 10), ("new", 20)):
        files.write(PulledRecord(ref, moment, {}))
    manager(tmp_path).prune({"there"}, before=20)
    assert sorted(record.image_ref for record in files.records()[0]) == ["new", "there"]
