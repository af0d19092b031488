"""A shared store's names: its bucket, its folder on this machine, and what is refused before anything is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import imagestore
from imagestore import BucketSettings, platforms
from imagestore.errors import ConfigError, InvalidInputError
from imagestore.metadata.postgres.address import DatabaseAddress, checked_scope
from imagestore.store.adapters import bucket_settings, machine_folder
from tests.support.commands import Commands

LINUX = platforms.parse("linux/amd64")
URL = "postgresql://images:secret@db.example:5433/images"


def test_the_environment_says_how_a_bucket_is_reached() -> None:
    environ = {"AWS_ENDPOINT_URL": "https://all.example", "AWS_DEFAULT_REGION": "eu-west-1"}
    assert bucket_settings("s3://b/x", environ) == BucketSettings(
        "s3://b/x", endpoint="https://all.example", region="eu-west-1"
    )
    environ |= {"AWS_ENDPOINT_URL_S3": "https://s3.example", "AWS_REGION": "eu-north-1"}
    assert bucket_settings("s3://b/x", environ) == BucketSettings(
        "s3://b/x", endpoint="https://s3.example", region="eu-north-1"
    )
    assert bucket_settings("s3://b/x", {}) == BucketSettings("s3://b/x")


@pytest.mark.parametrize("text", ["", "images/store", "/var/lib/images", "gs://images", "S3://images"])
def test_what_is_no_bucket_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="s3://BUCKET"):
        bucket_settings(text, {})


def test_a_machines_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert machine_folder(URL).parent == tmp_path / ".cache/imagestore"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert machine_folder(URL).parent == Path("/var/cache/imagestore")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert machine_folder(URL).parent == tmp_path / "xdg/imagestore"
    monkeypatch.setenv("CACHE_DIRECTORY", f"{tmp_path}/systemd:{tmp_path}/more")
    folder = machine_folder(URL)
    assert folder.parent == tmp_path / "systemd/imagestore"
    assert "secret" not in str(folder)
    assert folder != machine_folder(URL.replace("/images", "/others"))
    assert folder == machine_folder(f"{URL.replace('secret', 'another')}?sslmode=require")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (URL, "postgresql://db.example:5433/images"),
        ("postgresql://u@a.example,b.example/x?target_session_attrs=read-write", "postgresql://a.example,b.example/x"),
        ("postgresql://u@a:1,b:2/x", "postgresql://a:1,b:2/x"),
        ("postgresql:///x?host=/run/postgresql&password=secret", "postgresql:///x?host=/run/postgresql"),
    ],
)
def test_an_address_is_named_without_its_password(url: str, name: str) -> None:
    address = DatabaseAddress(url)
    assert address.name == name
    assert "secret" not in repr(address)


@pytest.mark.parametrize(
    "root", ["postgresql+psycopg://u:secret@db/x", "mysql://u:secret@db/x", "host=db password=secret"]
)
def test_another_kind_of_address_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ({}, {"content": "s3://b/x"}):
        with pytest.raises(InvalidInputError) as refused:
            imagestore.open(root, **given)  # type: ignore[arg-type]  # no option, or one
        assert "secret" not in f"{refused.value} {refused.value.hint}"
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_does_not_repeat_it_either(capsys: pytest.CaptureFixture[str]) -> None:
    cli = Commands(capsys, "--root", "mysql://u:secret@db/x")
    cli("images", status=2)
    assert "postgresql://" in cli.error
    assert "secret" not in cli.error


@pytest.mark.parametrize("package", ["psycopg", "psycopg_pool"])
def test_a_missing_extra_is_named(package: str) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = None
import imagestore
try:
    imagestore.open("postgresql://db.example/x", content="s3://b/x")
except imagestore.errors.ConfigError as error:
    print(error.hint)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert "oci-imagestore[postgres]" in done.stdout


def test_a_user_without_a_home_gets_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(ConfigError, match="4711"):
        machine_folder(URL)


def test_an_address_that_can_not_be_read_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        DatabaseAddress("postgresql://user:secret@[::1/x")
    assert "secret" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize("scope", ["ci", "zone-a/mirror", "1", "a" * 100])
def test_scopes(scope: str) -> None:
    assert checked_scope(scope) == scope


@pytest.mark.parametrize("scope", ["", " ", "a b", "/a", "-a", "a" * 101, "ä", "a\n"])
def test_what_is_no_scope_is_refused(scope: str) -> None:
    with pytest.raises(InvalidInputError, match="scope"):
        checked_scope(scope)


@pytest.mark.parametrize(
    ("root", "given"),
    [
        ("postgresql://db.example/x", {}),
        ("postgresql://db.example/x", {"content": "elsewhere"}),
        ("postgres://db.example/x", {"content": "s3://b/x", "scope": "no scope"}),
        ("folder", {"content": "s3://b/x"}),
        ("folder", {"scope": "ci"}),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str, given: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError):
        imagestore.open(root, **given)  # type: ignore[arg-type]  # one or two of its options
    assert list(tmp_path.iterdir()) == []
