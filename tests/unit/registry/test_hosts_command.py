"""``imagestore hosts``: the order, and why."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from imagestore.cli.app import App
from imagestore.cli.hosts import hosts
from imagestore.cli.main import main
from imagestore.config.hosts import HostConfig, RegistryHosts
from imagestore.errors import ConfigError, InvalidReferenceError, RegistryUnavailableError
from imagestore.registry.endpoints import endpoints_from
from imagestore.registry.mirrors import Breaker

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
[host."https://cache.example"]
capabilities = ["pull"]
skip_verify = true
[host."https://cache.example".header]
X-Token = "hunter2"
[host."http://near.example:5000"]
colour = "blue"
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://user:passw0rd@proxy.example:3128")
    (tmp_path / "certs" / "docker.io").mkdir(parents=True)
    (tmp_path / "certs" / "docker.io" / "hosts.toml").write_text(TEXT)
    config = tmp_path / "config.toml"
    config.write_text(
        f'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{tmp_path}/certs"\n'
    )
    return App(given_root=tmp_path / "store", given_config=config)


def run(app: App, *arguments: str) -> str:
    return CliRunner().invoke(hosts, list(arguments), obj=app, catch_exceptions=False).output


def test_the_table_shows_order_and_reasons(app: App) -> None:
    out = run(app, "python:3").splitlines()
    assert [line.split()[:4] for line in out[1:4]] == [
        ["1", "https://cache.example/v2", "mirror", "content"],
        ["2", "http://near.example:5000/v2", "mirror", "yes"],
        ["3", "https://registry-1.docker.io/v2", "registry", "yes"],
    ]
    assert out[1].endswith("certs/docker.io/hosts.toml:2")
    notes = "\n".join(out[4:])
    assert "cache.example: certificates are not checked: skip_verify" in notes
    assert "cache.example: sends header fields X-Token" in notes
    assert "near.example:5000: not encrypted: plain http" in notes
    assert "registry-1.docker.io: through proxy http://proxy.example:3128" in notes
    assert "remark: " in notes
    assert "colour" in notes


@pytest.mark.parametrize("form", ["table", "json"])
def test_secrets_are_not_shown(app: App, form: str) -> None:
    out = run(app, "python:3", "-o", form)
    assert "hunter2" not in out
    assert "passw0rd" not in out


def test_json_has_the_same_facts(app: App) -> None:
    found = json.loads(run(app, "python@sha256:" + "a" * 64, "-o", "json"))
    assert [(one["url"], one["isUpstream"], one["isAsked"]) for one in found["endpoints"]] == [
        ("https://cache.example/v2", False, True),
        ("http://near.example:5000/v2", False, True),
        ("https://registry-1.docker.io/v2", True, True),
    ]
    assert found["folder"].endswith("certs/docker.io")
    assert len(found["remarks"]) == 1


def test_a_host_that_may_not_say_what_a_tag_means_is_still_asked_for_content(app: App) -> None:
    found = json.loads(run(app, "python:3", "-o", "json"))["endpoints"]
    assert [(one["isAsked"], one["isAskedToResolve"]) for one in found] == [(True, False), (True, True), (True, True)]


def test_a_mirror_that_is_left_out_for_now_is_named(app: App, tmp_path: Path) -> None:
    mirror = endpoints_from("docker.io", RegistryHosts((HostConfig("http://near.example:5000/v2"),)))[0]
    Breaker(str(tmp_path / "store" / "hosts")).record_failure(mirror, RegistryUnavailableError("no connection"))
    assert "near.example:5000: could not be reached and is left out" in run(app, "python:3")
    notes = [one["notes"] for one in json.loads(run(app, "python:3", "-o", "json"))["endpoints"]]
    assert ["left out" in " ".join(each) for each in notes] == [False, True, False]


def test_without_configuration_the_built_in_rule_is_named(app: App) -> None:
    assert "https://ghcr.io/v2" in run(app, "ghcr.io/a/b")
    assert "built-in rule" in run(app, "ghcr.io/a/b")


@pytest.mark.parametrize("form", ["table", "json"])
def test_certificate_files_that_can_not_be_used_are_an_error_with_file_and_line(
    app: App, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "certs" / "docker.io" / "hosts.toml"
    place.write_text('[host."https://cache.example"]\n  skip_verify = true\n  ca = ["nope.pem"]\n')
    told = f"{place}:3: ca {tmp_path}/certs/docker.io/nope.pem: not a readable PEM file of certificates"
    line = ["--root", str(app.root), "--config", str(app.config_path)]
    assert main([*line, "hosts", "python:3", "-o", form]) == 9
    out, error = capsys.readouterr()
    said = json.loads(error)["message"] if form == "json" else error.removeprefix("imagestore: ").rstrip()
    assert said == f"{told}: No such file or directory"
    assert f"can't be asked: {told}" in out
    assert "trusts" not in out
    assert "https://registry-1.docker.io/v2" in out
    assert main([*line, "pull", "python:3"]) == 9
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("member", ['ca = "pipe"', 'client = "pipe"', 'client = [["good.pem", "pipe"]]'])
def test_certificate_files_that_are_no_files_are_not_waited_for(app: App, tmp_path: Path, member: str) -> None:
    folder = tmp_path / "certs" / "docker.io"
    os.mkfifo(folder / "pipe")
    (folder / "good.pem").write_text("")
    (folder / "hosts.toml").write_text(f'[host."https://cache.example"]\n  {member}\n')
    with pytest.raises(ConfigError, match="expected a regular file, found a FIFO"):
        run(app, "python:3")


@pytest.mark.parametrize("member", ['ca = "nope.pem"', 'client = [["nope.pem", "nope.key"]]'])
def test_certificate_files_that_nothing_needs_are_no_error(app: App, tmp_path: Path, member: str) -> None:
    place = tmp_path / "certs" / "docker.io" / "hosts.toml"
    place.write_text(f'[host."https://cache.example"]\n  capabilities = ["push"]\n  {member}\n')
    assert "nope.pem" in run(app, "python:3")
    place.write_text(f'[host."https://cache.example"]\n  {member}\n')
    with pytest.raises(ConfigError, match=r"hosts\.toml:2: .*nope\.pem[^\[]*: No such file or directory$"):
        run(app, "python:3")


def test_errors_are_the_usual_ones(app: App, tmp_path: Path) -> None:
    with pytest.raises(InvalidReferenceError):
        run(app, "Upper/Case")
    (tmp_path / "certs" / "docker.io" / "hosts.toml").write_text("[")
    with pytest.raises(ConfigError, match=r"hosts\.toml:1"):
        run(app, "python")


def test_over_plain_http_nothing_is_said_of_certificates(app: App, tmp_path: Path) -> None:
    place = tmp_path / "certs" / "docker.io" / "hosts.toml"
    tls = 'client = [["c.cert", "c.key"]]\nca = "c.pem"\nskip_verify = true\n'
    place.write_text(f'[host."http://near.example"]\n{tls}')
    [first, _] = json.loads(run(app, "python:3", "-o", "json"))["endpoints"]
    assert first["notes"] == ["not encrypted: plain http"]
