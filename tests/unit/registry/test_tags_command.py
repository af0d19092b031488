"""``imagestore tags``."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.cli.main import main
from imagestore.testing import BasicAuth, FaultRule, RegistryServer, Where, build_image
from imagestore.testing.faults import Refuse

IMAGE = build_image("linux/amd64")
TAGS = ("1", "2-b", "latest")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    with RegistryServer({f"registry.example/team/app:{tag}": IMAGE for tag in TAGS}) as running:
        yield running


def repository(server: RegistryServer) -> str:
    return server.server.reference("registry.example/team/app:1").removesuffix(":1")


def test_the_tags_are_listed_and_no_store_is_made(
    server: RegistryServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["tags", repository(server)]) == 0
    assert capsys.readouterr().out == "1\n2-b\nlatest\n"
    assert not (tmp_path / "store").exists()


def test_as_json(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tags", repository(server), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"repository": repository(server), "tags": list(TAGS), "next": None}


def test_a_limit_reads_one_page_and_says_how_to_go_on(
    server: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tags", repository(server), "--limit", "2"]) == 0
    assert capsys.readouterr() == ("1\n2-b\n", "there may be more: --after 2-b\n")
    assert server.ledger.count(kind="tags") == 1
    assert main(["tags", repository(server), "--limit", "2", "--after", "2-b"]) == 0
    assert capsys.readouterr() == ("latest\n", "")
    assert main(["tags", repository(server), "--limit", "2", "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["next"], err) == ("2-b", "")
    assert main(["tags", repository(server), "--limit", "0"]) == 2


def test_repositories_in_pages(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", server.address, "--limit", "1", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["next"] == "team/app"
    assert main(["catalog", server.address, "--after", "team/app"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("suffix", [":1", ":latest", f"@{IMAGE.target.digest}", f":1@{IMAGE.target.digest}"])
def test_a_tag_or_digest_is_wrong_usage(
    server: RegistryServer, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    assert main(["tags", repository(server) + suffix]) == 2
    assert f"without tag or digest: {repository(server)}\n" in capsys.readouterr().err


def test_a_repository_that_is_not_there(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tags", f"{repository(server)}-more"]) == 3
    assert f"{repository(server)}-more" in capsys.readouterr().err


def test_refused_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    faults = [FaultRule(Refuse(403), Where(kind="tags"), times=0)]
    with RegistryServer({"registry.example/team/app:1": IMAGE}, faults=faults) as server:
        assert main(["tags", repository(server)]) == 5


def test_given_credentials_are_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    with RegistryServer({"registry.example/team/app:1": IMAGE}, auth=BasicAuth({"robot": "word"})) as server:
        assert main(["tags", repository(server), "--anonymous"]) == 5
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"robot:word\n")))
        capsys.readouterr()
        assert main(["tags", repository(server), "--creds-stdin"]) == 0
        assert capsys.readouterr().out == "1\n"
