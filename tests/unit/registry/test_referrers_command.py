"""``imagestore referrers``, and ``pull --limit-rate``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore import config, platforms
from imagestore.cli.main import main
from imagestore.cli.options import parse_rate
from imagestore.testing import FaultRule, RegistryServer, Where, build_artifact, build_image, layer
from imagestore.testing.faults import Refuse

SUBJECT = build_image("linux/amd64", layers=[layer("base", size=200_000, compression="none")])
SIGNATURE = build_artifact(
    "application/vnd.example.signature",
    {"signature": b"signed"},
    subject=SUBJECT.target,
    annotations={"by": "alice\x1b[2J"},
)
LIST = build_artifact("application/vnd.example.parts", {"parts": b"a list"}, subject=SUBJECT.target)
IMAGES = {
    "registry.example/team/app:1": SUBJECT,
    "registry.example/team/app:signature": SIGNATURE,
    "registry.example/team/app:parts": LIST,
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    with RegistryServer(IMAGES) as running:
        yield running


def run(
    server: RegistryServer, capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0, tag: str = "1"
) -> str:
    reference = server.server.reference("registry.example/team/app:1").removesuffix("1") + tag
    assert main([arguments[0], reference, *arguments[1:]]) == status
    return capsys.readouterr().out


def test_everything_that_refers_to_an_image_is_listed(
    server: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(run(server, capsys, "referrers", "-o", "json"))
    assert found["subject"]["digest"] == str(SUBJECT.target.digest)
    assert found["isFromTag"] is False
    assert {(one["artifactType"], one["digest"]) for one in found["referrers"]} == {
        ("application/vnd.example.signature", str(SIGNATURE.target.digest)),
        ("application/vnd.example.parts", str(LIST.target.digest)),
    }


def test_only_one_artifact_type_is_listed_where_asked(
    server: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run(server, capsys, "referrers", "--artifact-type", "application/vnd.example.parts").splitlines()
    assert lines[0].split() == ["ARTIFACT", "TYPE", "DIGEST", "SIZE"]
    assert [line.split()[:2] for line in lines[1:]] == [["application/vnd.example.parts", str(LIST.target.digest)]]


def test_annotations_cannot_act_on_a_terminal(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in run(server, capsys, "referrers", "-o", "json")


def test_nothing_is_stored(server: RegistryServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(server, capsys, "referrers")
    assert not list((tmp_path / "store").rglob("sha256/*"))


def test_an_image_without_referrers_has_an_empty_list(
    server: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(run(server, capsys, "referrers", "-o", "json", tag="parts"))["referrers"] == []


def test_an_image_that_is_not_there_is_an_error(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    run(server, capsys, "referrers", status=3, tag="nothing")


def test_a_registry_that_refuses_to_say_is_not_the_same_as_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    with RegistryServer(IMAGES, faults=[FaultRule(Refuse(403), Where(kind="referrers"), times=0)]) as server:
        run(server, capsys, "referrers", status=5)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1", 1),
        ("500/s", 500),
        ("1k", 1000),
        ("1K", 1000),
        ("2KiB", 2048),
        ("10MiB/s", 10 * 2**20),
        ("10 MiB", 10 * 2**20),
        ("1.5MB", 1_500_000),
        ("0.5GiB", 2**29),
        ("1tib/s", 2**40),
        ("", None),
        ("-1", None),
        ("1,5M", None),
        ("1e6", None),
        ("1i", None),
        ("1MiBps", None),
        ("\u0661M", None),
        ("1.M", None),
    ],
)
def test_rates_as_people_write_them(text: str, rate: int | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["0", "fast", "-5"])
def test_a_rate_that_is_none_is_wrong_usage(
    server: RegistryServer, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    run(server, capsys, "pull", f"--limit-rate={text}", status=2)


def test_a_limited_pull_takes_its_time(server: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    run(server, capsys, "pull", "--limit-rate=800kB/s", "--platform=linux/amd64", "--progress=none")
    assert time.monotonic() - started >= 200_000 / 800_000


def test_the_examples_table_means_what_its_comments_say() -> None:
    example = (Path(__file__).parents[3] / "config.toml.example").read_text()
    table = example[example.index('# [plugins."io.imagestore.registry.v1"]') :].partition("\n\n")[0]
    lines = [line.removeprefix("#") for line in table.splitlines()]
    text = "\n".join(line for line in lines if not line.strip().startswith("#"))
    loaded = config.loads(f"version = 3\n{text}\n", filename="config.toml", host=platforms.parse("linux/amd64"))
    settings = loaded.settings.registry
    assert loaded.findings == ()
    assert settings.mirror_credentials == {"mirror.example": "docker.io"}
    assert settings.foreign_layer_hosts == {"mcr.microsoft.com"}
    assert settings.trusted_realms == {("registry.example", "auth.other.example")}
    assert (settings.parallel_ranges, settings.connections_per_host) == (1, 8)
