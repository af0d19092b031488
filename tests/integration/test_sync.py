"""``imagestore sync`` from a recorded registry into docker-registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from imagestore.testing import BasicAuth, RegistryServer, build_artifact, build_index
from tests.support.commands import Commands
from tests.support.peers import docker_registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.peers import DockerRegistry

pytestmark = pytest.mark.integration

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
VERSIONS = ("v1.0", "1.2.3", "1.10.0", "2.0.0", "2.1.0-rc1", "latest")


class Syncing(Commands):
    """Runs ``sync`` with a file's text."""

    def __init__(
        self, folder: Path, capture: pytest.CaptureFixture[str], source: RegistryServer, target: DockerRegistry
    ) -> None:
        super().__init__(capture, "--root", str(folder / "store"))
        self.file = folder / "images.yml"
        self.source = source
        self.host = source.server.address
        self.target = f"{target.address}/mirror"

    def sync(self, table: str, *words: str, status: int = 0) -> str:
        """What it prints, with this table for the source registry."""
        self.file.write_text(f'"{self.host}":\n' + "\n".join(f"  {line}" for line in table.splitlines()))
        return self("sync", str(self.file), *words, "--progress=none", status=status)

    def copied(self, table: str, *words: str) -> list[str]:
        """The destinations, behind the target, of what would be copied."""
        found = json.loads(self.sync(table, self.target, *words, "-n", "-o", "json"))["images"]
        return [each["destination"].removeprefix(f"{self.target}/") for each in found]

    def digest(self, name: str) -> str:
        """What a name leads to."""
        return self("digest", name).strip()


@pytest.fixture
def syncing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Syncing]:
    images = {
        f"registry.example/team/app:{tag}": build_index(["linux/amd64", "linux/arm64"], seed=tag) for tag in VERSIONS
    }
    latest = images["registry.example/team/app:latest"]
    images["registry.example/team/app:signature"] = build_artifact(
        "application/x", {"a": b"signed"}, subject=latest.target
    )
    images["registry.example/other/app:1.2.3"] = build_index(["linux/amd64"])
    with docker_registry(tmp_path) as target, RegistryServer(images) as source:
        yield Syncing(tmp_path, capsys, source, target)


def test_what_a_file_names_is_copied_once(syncing: Syncing) -> None:
    table = "images: {team/app: ['1.2.3', latest]}"
    assert "2 images: 2 would copy" in syncing.sync(table, syncing.target, "--dry-run")
    assert "2 images: 2 copied" in syncing.sync(table, syncing.target)
    for tag in ("1.2.3", "latest"):
        assert syncing.digest(f"{syncing.target}/app:{tag}") == syncing.digest(f"{syncing.host}/team/app:{tag}")
    before = syncing.source.ledger.count()
    assert "2 images: 2 unchanged" in syncing.sync(table, syncing.target)
    asked = [entry.method for entry in syncing.source.ledger.entries[before:] if entry.kind == "manifest"]
    assert asked == ["HEAD", "HEAD"]


@pytest.mark.parametrize(
    ("table", "tags"),
    [
        ("images: {team/app: []}", {*VERSIONS, "signature"}),
        ("images-by-tag-regex: {team/app: '^1\\.'}", {"1.2.3", "1.10.0"}),
        ("images-by-semver: {team/app: '>= 1.2, < 2'}", {"1.2.3", "1.10.0"}),
        ("images-by-semver: {team/app: '1.2 - 1.9 || ^2.0.0'}", {"1.2.3", "2.0.0"}),
        ("images-by-semver: {team/app: '>= 2.1.0-rc1'}", {"2.1.0-rc1"}),
        ("images-by-semver: {team/app: '1.0.0'}", {"v1.0"}),
        ("images-by-semver: {team/app: ^1.x}\ncredentials:", {"v1.0", "1.2.3", "1.10.0"}),
        ("images: {team/app: [2.0.0]}", {"2.0.0"}),
        ("x-imagestore: {tags: {team/app: 'l*'}}", {"latest"}),
    ],
)
def test_tags_are_named_or_chosen_by_rules(syncing: Syncing, table: str, tags: set[str]) -> None:
    assert {each.removeprefix("app:") for each in syncing.copied(table)} == tags


def test_images_of_one_name_need_scopes(syncing: Syncing) -> None:
    table = "images: {team/app: ['1.2.3'], other/app: ['1.2.3']}"
    syncing.sync(table, syncing.target, status=2)
    assert "would both go to" in syncing.error
    assert "--scoped" in syncing.error
    host = syncing.host.replace(":", "_")
    assert syncing.copied(table, "--scoped") == [f"{host}/team/app:1.2.3", f"{host}/other/app:1.2.3"]


def test_targets_and_referrers_of_the_file(syncing: Syncing) -> None:
    own = f"x-imagestore: {{targets: [{syncing.target}/a, {syncing.target}/b], referrers: true}}"
    printed = syncing.sync(f"images: {{team/app: [latest]}}\n{own}")
    assert printed.count("with 1 referrer") == 2
    assert "2 images: 2 unchanged" in syncing.sync(f"images: {{team/app: [latest]}}\n{own}")
    for part in ("a", "b"):
        assert (
            len(json.loads(syncing("referrers", f"{syncing.target}/{part}/app:latest", "-o", "json"))["referrers"]) == 1
        )


def test_the_list_of_referrers_of_a_target_stays_its_own(syncing: Syncing, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with docker_registry(tmp_path / "other") as source:
        index = build_index(["linux/amd64"], seed="listed")
        source.push("team/app", "1", index)
        source.push("team/app", f"sha256-{index.target.digest.encoded}", index)
        syncing.host = source.address
        syncing.file.write_text(f'"{source.address}": {{images: {{team/app: []}}}}')
        found = json.loads(syncing("sync", str(syncing.file), syncing.target, "-n", "-o", "json", "--progress=none"))
    assert [each["destination"] for each in found["images"]] == [f"{syncing.target}/app:1"]


def test_failures_end_it_or_are_counted(syncing: Syncing) -> None:
    table = "images: {nothing: [], team/app: [missing, latest]}"
    syncing.sync(table, syncing.target, status=3)
    assert "tags of" in syncing.error
    partly = "images: {team/app: [latest, missing, '2.0.0']}"
    found = json.loads(syncing.sync(partly, f"{syncing.target}/partly", "-o", "json", status=3))
    assert ([each["state"] for each in found["images"]], len(found["failed"])) == (["copied"], 1)
    printed = syncing.sync(table, syncing.target, "--keep-going", status=3)
    assert "3 images: 1 copied, 2 failed" in printed
    found = json.loads(syncing.sync(table, syncing.target, "--keep-going", "-o", "json", status=3))
    assert [each["state"] for each in found["images"]] == ["unchanged"]
    assert [each["status"] for each in found["failed"]] == [3, 3]
    jsonschema.validate(found, json.loads((SCHEMAS / "sync.json").read_text()), jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("images-by-semver: {team/app: '>= 1 or 2'}", "is no range of versions"),
        ("x-imagestore: {targets: [5:5:5]}", "x-imagestore: target: "),
        ("images: [team/app]", "expected a table, got a list"),
        ("image: {team/app: []}", "is images meant?"),
        ("images: {team/app: ['a b']}", "is no tag and no digest"),
        ("images: {'team/app:1': []}", "without tag"),
        ("images-by-tag-regex: {team/app: '('}", "team/app: '('"),
        ("images-by-semver: {team/app: 'about 2'}", "about 2"),
        ("x-imagestore: {target: 'mirror'}", "expected a registry with its host"),
        ("credentials: {username: robot}", "expected username and password"),
        ("tls-verify: true", "names no image"),
    ],
)
def test_files_that_can_not_be_meant_are_refused(syncing: Syncing, table: str, text: str) -> None:
    assert syncing.sync(table, syncing.target, status=9) == ""
    assert text in syncing.error


def test_all_tags_of_a_repository(syncing: Syncing) -> None:
    source, target = f"{syncing.host}/team/app", f"{syncing.target}/all"
    words = ("copy", "--all-tags", source, target, "--progress=none")
    found = json.loads(syncing(*words, "-n", "-o", "json"))
    assert {each["destination"] for each in found["images"]} == {f"{target}:{tag}" for tag in (*VERSIONS, "signature")}
    assert "7 images: 7 copied" in syncing(*words)
    assert "7 images: 7 unchanged" in syncing(*words)
    assert syncing.digest(f"{target}:1.2.3") == syncing.digest(f"{source}:1.2.3")
    for refused in ((f"{source}:1.2.3", target), (source, "store:all"), (source, target, "--platform=linux/amd64")):
        syncing("copy", "--all-tags", *refused, status=2)
        assert "--all-tags" in syncing.error


def test_a_second_document_is_refused(syncing: Syncing) -> None:
    syncing.file.write_text("registry.example: {images: {app: []}}\n---\nregistry.example: {images: {b: []}}\n")
    syncing("sync", str(syncing.file), syncing.target, status=9)
    assert "has 2 YAML documents" in syncing.error


def test_logins_of_the_file_go_to_their_registry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    images = {"registry.example/app:1": build_index(["linux/amd64"])}
    auth = BasicAuth({"robot": "sesame-4711"})
    with docker_registry(tmp_path) as target, RegistryServer(images, auth=auth) as source:
        syncing = Syncing(tmp_path, capsys, source, target)
        syncing.sync("images: {app: ['1']}", syncing.target, status=5)
        login = "credentials: {username: robot, password: sesame-4711}"
        assert "1 copied" in syncing.sync(f"images: {{app: ['1']}}\n{login}", syncing.target)
        assert "sesame" not in syncing.error
