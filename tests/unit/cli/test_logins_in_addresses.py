"""A password in an address that a command gets is never printed, nor is any part of it if the address is malformed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagestore.cli.main import main

PASSWORDS = ["topword", "top@word", "top/word", "top%word", "top?word", "top#word", "top:word"]
ADDRESSES = ["https://user:{}@127.0.0.1:1/a:1", "docker://user:{}@127.0.0.1:1/a:1", "http:/user:{}@127.0.0.1:1/a:1"]
COMMANDS = [
    *(["pull"], ["digest"], ["rmi"], ["inspecti"], ["hosts"], ["tags"], ["auth", "explain"], ["match"], ["untag"]),
    *(["why"], ["push"], ["images"], ["cat"], ["df"], ["report"], ["import"], ["repair"], ["catalog"], ["logout"]),
    *(["login", "-u", "x"], ["mirror", "hosts-toml"], ["node", "ensure"], ["copy", "oci:x"]),
    *(["--endpoint", "unix:///none", "pull"], ["node", "ensure", "a:1", "--endpoint"], ["tape", "fetch"]),
    *(["serve", "--listen"], ["serve", "--metrics-listen"], ["serve", "--mirror"], ["serve", "--proxy-content"]),
]
ROOTS = [
    *("postgresql://user:{}@127.0.0.1:1/x", "postgres://user:{}@127.0.0.1:1/x", "postgresql:/user:{}@127.0.0.1/x"),
    *("postgresql:user:{}@127.0.0.1/x", "mysql://user:{}@h/x", "user:{}@127.0.0.1/x", "host=h password = {}"),
    "postgresql://user:{}@127.0.0.1:x/x",
]
#: What a URL can't hold as it is, so that libpq would read another host, or none.
AMBIGUOUS = ["top@word", "top/word", "top?word", "top#word"]


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command printed that has to fail for what it was given."""
    capsys.readouterr()
    assert main(list(arguments)) not in (0, 1)
    out, error = capsys.readouterr()
    assert "top" not in out + error
    assert not re.search(r"(?<!pass)word", out + error)
    return error


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_images_registries_and_endpoints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    root = [] if command[0] == "--endpoint" else ["--root", str(tmp_path / "store")]
    forms = [(ADDRESSES[0], each) for each in PASSWORDS] + [(each, "top@wo/rd") for each in ADDRESSES[1:]]
    for form, password in forms:
        refused(capsys, *root, *command, form.format(password))


@pytest.mark.parametrize("form", ROOTS)
def test_roots(capsys: pytest.CaptureFixture[str], form: str) -> None:
    for password in PASSWORDS:
        error = refused(capsys, "--root", form.format(password), "--content", "s3://bucket/x", "images")
        assert "postgresql://" in error


@pytest.mark.parametrize("password", AMBIGUOUS)
def test_an_ambiguous_password_must_be_percent_encoded(capsys: pytest.CaptureFixture[str], password: str) -> None:
    root = f"postgresql://user:{password}@127.0.0.1:1/x"
    error = refused(capsys, "--root", root, "--content", "s3://bucket/x", "images")
    assert "percent-encoded" in error


def test_a_root_that_has_lost_its_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert "port" in refused(capsys, "--root", "postgresql://user:topword", "--content", "s3://bucket/x", "images")


@pytest.mark.parametrize("form", ["s3://user:{}@bucket/x", "https://user:{}@bucket/x", "user:{}@bucket/x"])
def test_buckets(capsys: pytest.CaptureFixture[str], form: str) -> None:
    for password in PASSWORDS:
        refused(capsys, "--root", "postgresql://127.0.0.1:1/x", "--content", form.format(password), "images")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "HTTPS_PROXY"])
def test_variables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    command = ["--root", "postgresql://127.0.0.1:1/x", "--content", "s3://bucket/x", "images"]
    if variable == "HTTPS_PROXY":
        command = ["--debug", "digest", "registry.invalid/a:1"]
    for password in PASSWORDS:
        monkeypatch.setenv(variable, f"ftp://user:{password}@127.0.0.1:1")
        refused(capsys, *command)


@pytest.mark.parametrize("table", ['server = "{}"', '[host."{}"]', '[host."https://m.example"]\nca = "{}"'])
def test_files_of_hosts(capsys: pytest.CaptureFixture[str], tmp_path: Path, table: str) -> None:
    hosts = tmp_path / "certs.d" / "m.example" / "hosts.toml"
    hosts.parent.mkdir(parents=True)
    config = tmp_path / "config.toml"
    config.write_text(
        f"version = 3\n[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '{hosts.parents[1]}'"
    )
    for password in [*PASSWORDS, "12/word"]:
        hosts.write_text(table.format(f"https://user:{password}@127.0.0.1:1"))
        refused(capsys, "config", "check", str(config))
        refused(capsys, "--config", str(config), "digest", "m.example/a:1")
