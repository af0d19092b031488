"""``imagestore inspect``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from imagestore import platforms
from imagestore.cli.main import main
from imagestore.testing import FaultRule, RegistryServer, Where, build_artifact, build_image, build_index
from imagestore.testing.faults import Refuse

INDEX: Final = build_index(["linux/amd64", "linux/arm64"], attestations=True)
AMD64, ARM64 = INDEX.manifests[:2]
SIGNATURE: Final = build_artifact("application/vnd.example.signature", {"s": b"signed"}, subject=INDEX.target)
LABELLED: Final = build_image(
    "linux/arm64", config={"config": {"Labels": {"by": "alice\x1b[2J"}, "Entrypoint": ["/app", "serve"]}}
)
IMAGES: Final = {
    "registry.example/app:1": INDEX,
    "registry.example/app:signature": SIGNATURE,
    "registry.example/app:labelled": LABELLED,
    **{f"registry.example/many:t{number:02}": LABELLED for number in range(21)},
}


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    monkeypatch.setattr("imagestore.platforms.host.detect", lambda: platforms.parse("linux/amd64"))


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer(IMAGES) as running:
        yield running


def inspect(
    server: RegistryServer, capsys: pytest.CaptureFixture[str], name: str, *options: str, status: int = 0
) -> str:
    assert main(["inspect", server.server.reference(f"registry.example/{name}"), *options]) == status
    return capsys.readouterr().out


def document(server: RegistryServer, capsys: pytest.CaptureFixture[str], name: str, *options: str) -> Any:
    return json.loads(inspect(server, capsys, name, *options, "--output", "json"))


def size_of(manifest: Any) -> int:
    return int(manifest.config.size + sum(layer.size for layer in manifest.layers))


def test_an_index_with_all_that_belongs_to_it(
    server: RegistryServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = document(server, capsys, "app:1")
    assert found["target"]["digest"] == str(INDEX.target.digest)
    assert [
        (each["platform"]["text"], each["manifest"]["digest"], each["contentSize"]) for each in found["platforms"]
    ] == [
        ("linux/amd64", str(AMD64.descriptor.digest), size_of(AMD64)),
        ("linux/arm64", str(ARM64.descriptor.digest), size_of(ARM64)),
    ]
    assert len(found["attestations"]) == 2
    assert found["chosen"]["id"] == str(AMD64.config.digest)
    assert (found["tags"], found["moreTags"]) == (["1", "labelled", "signature"], False)
    assert [each["artifactType"] for each in found["referrers"]] == ["application/vnd.example.signature"]
    assert found["remarks"] == []
    assert not (tmp_path / "store").exists()


def test_one_platform(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(server, capsys, "app:1", "--platform", "linux/arm64")
    assert found["target"]["digest"] == found["chosen"]["manifest"]["digest"] == str(ARM64.descriptor.digest)
    assert (found["platforms"], found["referrers"]) == ([], [])
    inspect(server, capsys, "app:1", "--platform", "linux/mips", status=4)
    inspect(server, capsys, "app:1", "--platform", "linux/mips", "--runtime-handler", "runc", status=2)


def test_labels_and_entry_point_of_an_image_for_another_platform(
    server: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    out = inspect(server, capsys, "app:labelled")
    assert 'entrypoint   ["/app", "serve"]' in out
    assert "label        by=alice\\x1b[2J" in out
    assert document(server, capsys, "app:labelled")["chosen"]["platform"]["text"] == "linux/arm64"


def test_an_artifact(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(server, capsys, "app:signature")
    assert found["chosen"]["artifactType"] == "application/vnd.example.signature"
    assert (found["chosen"]["id"], found["chosen"]["config"]) == (None, None)


def test_no_platform_for_the_default_handler(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    with RegistryServer({"registry.example/app:1": build_index(["linux/arm64"])}) as other:
        found = document(other, capsys, "app:1")
    assert (found["chosen"], len(found["platforms"])) == (None, 1)
    assert "no manifest for linux/amd64" in found["remarks"][0]


def test_tags_are_bounded(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(server, capsys, "many:t00")
    assert (len(found["tags"]), found["moreTags"]) == (20, True)
    assert "t19, ..." in inspect(server, capsys, "many:t00")


@pytest.mark.parametrize("kind", ["tags", "referrers"])
def test_lists_that_a_registry_refuses_are_said_and_the_rest_is_shown(
    capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    with RegistryServer(IMAGES, faults=[FaultRule(Refuse(403), Where(kind=kind), times=0)]) as server:
        found = document(server, capsys, "app:1")
    assert found[kind] is None
    assert "answered 403" in found["remarks"][0]
    assert found["chosen"] is not None


def test_documents_byte_for_byte(server: RegistryServer, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    reference = server.server.reference("registry.example/app:1")
    assert main(["inspect", reference, "--raw"]) == 0
    assert capsysbinary.readouterr().out == INDEX.documents[INDEX.target.digest].data
    assert main(["inspect", reference, "--config"]) == 0
    config = capsysbinary.readouterr().out
    assert main(["image-config", reference]) == 0
    assert capsysbinary.readouterr().out == config
    assert main(["inspect", reference, "--raw", "--config"]) == 2


def test_an_image_of_the_store(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    reference = server.server.reference("registry.example/app:1")
    inspect(server, capsys, "app:1", "--local", status=8)
    assert main(["pull", reference, "--progress", "none"]) == 0
    capsys.readouterr()
    server.ledger.clear()
    found = document(server, capsys, "app:1", "--local")
    assert server.ledger.entries == ()
    assert found["chosen"]["id"] == str(AMD64.config.digest)
    assert [each["contentSize"] for each in found["platforms"]] == [size_of(AMD64), None]
    assert (found["tags"], found["referrers"]) == (None, None)


def test_a_manifest_of_the_index_that_cannot_be_read_has_no_size(capsys: pytest.CaptureFixture[str]) -> None:
    fault = FaultRule(Refuse(404, "MANIFEST_UNKNOWN"), Where(reference=str(ARM64.descriptor.digest)), times=0)
    with RegistryServer(IMAGES, faults=[fault]) as server:
        found = document(server, capsys, "app:1")
    sizes = {each["manifest"]["digest"]: each["contentSize"] for each in found["platforms"]}
    assert sizes == {str(AMD64.descriptor.digest): size_of(AMD64), str(ARM64.descriptor.digest): None}
    assert any(str(ARM64.descriptor.digest) in each for each in found["remarks"])
