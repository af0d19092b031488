"""``inspect``, ``delete`` and lists in pages of Debian's docker-registry, with deletion enabled and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import httpx
import pytest

from imagestore.cli.main import main
from imagestore.oci.referrers import fallback_tag
from imagestore.testing import build_artifact, build_image, build_index
from tests.support.peers import docker_registry

pytestmark = pytest.mark.integration

IMAGE: Final = build_image("linux/amd64", seed="deleted")
BILLS: Final = (b"one bolt", b"two nuts")
INDEX: Final = build_index(["linux/amd64", "linux/arm64"], seed="kept")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))


def test_manifests_go_with_their_tags_and_what_is_needed_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with docker_registry(tmp_path) as registry:
        name = f"{registry.address}/team/app"
        tags = f"http://{registry.address}/v2/team/app/tags/list"
        for tag in ("1", "same"):
            registry.push("team/app", tag, IMAGE)
        registry.push("team/app", "all", INDEX)
        assert main(["delete", f"{name}:1"]) == 6
        assert f"imagestore delete {name}@{IMAGE.target.digest}" in capsys.readouterr().err
        assert main(["delete", f"{name}@{INDEX.manifests[1].descriptor.digest}"]) == 1
        assert f"still needed, so nothing was deleted: index {INDEX.target.digest} (all)" in capsys.readouterr().err
        assert main(["delete", f"{name}@{IMAGE.target.digest}"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"deleted tag {name}:1",
            f"deleted tag {name}:same",
            f"deleted manifest {name}@{IMAGE.target.digest}",
        ]
        assert httpx.get(tags).json()["tags"] == ["all"]
        assert main(["delete", f"{name}@{IMAGE.target.digest}"]) == 3
        assert main(["delete", f"{name}@{INDEX.target.digest}"]) == 0
        assert httpx.get(tags).json()["tags"] is None


def test_a_registry_that_may_not_delete_says_how_to_enable_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with docker_registry(tmp_path, deletes=False) as registry:
        reference = registry.push("team/app", "1", IMAGE).removesuffix(":1")
        assert main(["delete", f"{reference}@{IMAGE.target.digest}"]) == 6
        said = capsys.readouterr().err
        assert "405: UNSUPPORTED" in said
        assert "storage.delete.enabled: true" in said


def test_an_image_in_one_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with docker_registry(tmp_path) as registry:
        reference = registry.push("team/app", "all", INDEX)
        bill = build_artifact("application/vnd.example.bill", {"bill": b"one bolt"}, subject=INDEX.target)
        registry.push("team/app", "bill", bill)
        listing = build_index([bill], members={"annotations": {"is": "a list"}})
        registry.push("team/app", fallback_tag(INDEX.target.digest), listing)
        assert main(["inspect", reference, "--platform", "linux/arm64", "--output", "json"]) == 0
        one = json.loads(capsys.readouterr().out)
        assert one["chosen"]["id"] == str(INDEX.manifests[1].config.digest)
        assert (one["platforms"], one["referrers"]) == ([], [])
        assert main(["inspect", reference, "--output", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [each["platform"]["text"] for each in found["platforms"]] == ["linux/amd64", "linux/arm64"]
        assert all(each["contentSize"] > 0 for each in found["platforms"])
        assert "all" in found["tags"]
        assert [each["digest"] for each in found["referrers"]] == [str(bill.target.digest)]


def test_a_referrer_is_taken_off_its_list_before_its_subject_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with docker_registry(tmp_path) as registry:
        name = registry.push("team/app", "1", IMAGE).removesuffix(":1")
        bills = [build_artifact("application/vnd.example.bill", {"bill": each}, subject=IMAGE.target) for each in BILLS]
        registry.push("team/app", fallback_tag(IMAGE.target.digest), build_index(bills))
        assert main(["delete", f"{name}@{IMAGE.target.digest}"]) == 1
        assert f"referrer {bills[0].target.digest}, referrer {bills[1].target.digest}" in capsys.readouterr().err
        for bill, left in zip(bills, (bills[1:], []), strict=True):
            assert main(["delete", f"{name}@{bill.target.digest}"]) == 0
            capsys.readouterr()
            assert main(["referrers", f"{name}:1", "--output", "json"]) == 0
            listed = json.loads(capsys.readouterr().out)["referrers"]
            assert [each["digest"] for each in listed] == [str(each.target.digest) for each in left]
        assert main(["delete", f"{name}@{IMAGE.target.digest}"]) == 0


def test_lists_in_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with docker_registry(tmp_path) as registry:
        for repository in ("a", "b", "c"):
            registry.push(repository, "1", IMAGE)
        for tag in ("2", "3"):
            registry.push("a", tag, IMAGE)
        assert main(["catalog", registry.address, "--limit", "2"]) == 0
        assert capsys.readouterr().out == f"{registry.address}/a\n{registry.address}/b\n"
        assert main(["catalog", registry.address, "--limit", "2", "--after", "b"]) == 0
        assert capsys.readouterr().out == f"{registry.address}/c\n"
        seen: list[str] = []
        for _ in range(3):
            after = ["--after", seen[-1]] if seen else []
            assert main(["tags", f"{registry.address}/a", "--limit", "1", *after]) == 0
            seen += capsys.readouterr().out.split()
        assert sorted(seen) == ["1", "2", "3"]
