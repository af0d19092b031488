"""``imagestore mirror hosts-toml``, and what ``serve --mirror`` refuses."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest

import imagestore
from imagestore.cli.main import main
from imagestore.config import BucketSettings
from imagestore.config.hosts import read_hosts
from imagestore.errors import StoreError
from tests.support.mirror import mirror_table

if TYPE_CHECKING:
    from pathlib import Path

UPSTREAMS = {"docker.io": "", "registry.example:5000": ""}


@pytest.fixture
def configured(tmp_path: Path) -> list[str]:
    path = tmp_path / "mirror.toml"
    replicas = '["http://a.example:5000", "http://b.example:5000"]'
    path.write_text(mirror_table(UPSTREAMS, replicas=replicas, replica='"http://a.example:5000"'))
    return ["--config", str(path), "--root", str(tmp_path / "root")]


def test_a_folder_for_each_upstream(configured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "certs.d"
    given = ["--ca", "/etc/ca.pem", "--client", "/etc/c.pem", "/etc/k.pem", "--only-digests"]
    assert main([*configured, "mirror", "hosts-toml", "--directory", str(folder), *given]) == 0
    assert capsys.readouterr().out.split() == [
        f"{folder}/docker.io/hosts.toml",
        f"{folder}/registry.example_5000_/hosts.toml",
    ]
    for name, server in (
        ("docker.io", "https://registry-1.docker.io/v2"),
        ("registry.example:5000", "https://registry.example:5000/v2"),
    ):
        found = read_hosts(name, [str(folder)])
        assert found.server.base == server
        assert [each.base for each in found.mirrors] == ["http://a.example:5000/v2", "http://b.example:5000/v2"]
        assert found.mirrors[0].capabilities == {"pull"}
        assert found.mirrors[0].connection.ca_files == ("/etc/ca.pem",)
        assert found.mirrors[0].connection.client_pairs == (("/etc/c.pem", "/etc/k.pem"),)


def test_printed_for_one_upstream(configured: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*configured, "mirror", "hosts-toml", "docker.io", "--mirror", "http://m:5000/"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# docker.io/hosts.toml\n")
    assert tomllib.loads(printed) == {
        "server": "https://registry-1.docker.io",
        "host": {"http://m:5000": {"capabilities": ["pull", "resolve"]}},
    }


def test_what_is_refused(configured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*configured, "mirror", "hosts-toml", "other.example"]) == 2
    assert "docker.io" in capsys.readouterr().err
    empty = tmp_path / "empty.toml"
    empty.write_text("version = 3\n")
    without = ["--config", str(empty), "--root", str(tmp_path / "root")]
    assert main([*without, "mirror", "hosts-toml"]) == 2
    assert main([*without, "mirror", "hosts-toml", "--mirror", "http://m:5000"]) != 0
    assert "names no upstream" in capsys.readouterr().err
    assert main([*without, "serve", "--mirror", "nowhere"]) == 2
    assert main([*without, "serve", "--mirror", "127.0.0.1:0"]) != 0
    assert "names no upstream to serve" in capsys.readouterr().err


def test_a_table_that_can_not_be_read_is_refused_by_what_needs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(mirror_table(UPSTREAMS, default_upstream='"elsewhere.example"'))
    line = ["--config", str(path), "--root", str(tmp_path / "root")]
    said = f'{path}:10: plugins."io.imagestore.mirror.v1".default_upstream: '
    shared = ["--config", str(path), "--root", "postgresql://db.invalid/images", "--content", "s3://images/store"]
    for words in (
        [*line, "serve", "--mirror", "127.0.0.1:0"],
        [*line, "mirror", "hosts-toml"],
        [*line, "config", "check"],
        [*line, "config", "dump"],
        [*shared, "images"],
    ):
        assert main(words) == 9
        printed = capsys.readouterr()
        assert said in printed.out + printed.err
    imagestore.open(tmp_path / "root").close()
    assert main([*line, "images"]) == 0


def test_the_mirrors_table_says_how_the_bucket_of_a_shared_store_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def opened(*_: object, content: object, **__: object) -> None:
        given.append(content)
        raise StoreError("that is enough")

    monkeypatch.setattr("imagestore.store.image_store.ImageStore", opened)
    path = tmp_path / "mirror.toml"
    path.write_text(mirror_table(UPSTREAMS, bucket='{ url = "s3://images/store", endpoint = "https://s3.example" }'))
    for content in ("s3://images/store/", "s3://images/else"):
        line = ["--config", str(path), "--root", "postgresql://db.invalid/images", "--content", content]
        assert main([*line, "images"]) == 8
    assert given == [BucketSettings("s3://images/store", endpoint="https://s3.example"), "s3://images/else"]
