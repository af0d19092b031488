"""Credentials for one pull, and none at all."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.cli.main import main
from imagestore.testing import RegistryServer, TokenAuth, build_image

REFERENCE = "registry.example/private/a:1"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    auth = TokenAuth(users={"alice": "s3cret"}, allow_anonymous=False)
    with RegistryServer({REFERENCE: build_image()}, auth=auth) as running:
        yield running


def pull(monkeypatch: pytest.MonkeyPatch, server: RegistryServer, *options: str, typed: str = "") -> int:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
    return main(["pull", server.server.reference(REFERENCE), "--platform", "linux/amd64", *options])


def test_credentials_from_standard_input_open_a_private_image(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull(monkeypatch, server, "--creds-stdin", typed="alice:s3cret\n") == 0
    captured = capsys.readouterr()
    assert "s3cret" not in captured.out + captured.err


@pytest.mark.parametrize("options", [(), ("--anonymous",)])
def test_without_credentials_a_private_image_needs_a_login(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    assert pull(monkeypatch, server, *options) == 5


def test_a_stored_login_is_used_unless_anonymous(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    login = {"auths": {server.address: {"username": "alice", "password": "s3cret"}}}
    (tmp_path / "config.json").write_text(json.dumps(login))
    assert pull(monkeypatch, server, "--anonymous") == 5
    error = capsys.readouterr().err
    assert "without --anonymous" in error
    assert "imagestore login" not in error
    assert pull(monkeypatch, server) == 0


def test_wrong_credentials_are_refused_without_showing_them(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull(monkeypatch, server, "--creds-stdin", typed="alice:wr0ng") == 5
    error = capsys.readouterr().err
    assert "wr0ng" not in error
    assert "check the user name and the password that were given" in error
    assert "imagestore login" not in error


@pytest.mark.parametrize("typed", ["", "alice", ":x", "alice:", "a:\x00b\n"])
def test_unreadable_credentials_are_wrong_usage(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    assert pull(monkeypatch, server, "--creds-stdin", typed=typed) in (2, 5)
    assert server.ledger.count(kind="blob") == 0


def test_credentials_are_for_one_registry_only(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull(monkeypatch, server, "other.example/a", "--creds-stdin", typed="a:b") == 2
    assert "one registry" in capsys.readouterr().err
