"""``--plain-http``: a registry that isn't on this machine, without TLS. A proxy stands for the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from imagestore.cli.main import main
from imagestore.testing import Registry, build_image

IMAGE: Final = build_image("linux/amd64")
NAME: Final = "registry.example/app:1"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Asked through a proxy for plain http; there is no way to it with TLS."""
    made = Registry({NAME: IMAGE})
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    monkeypatch.setattr("imagestore.config.hosts.DEFAULT_FOLDERS", (str(tmp_path / "certs.d"),))
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with made.proxy() as proxy:
        monkeypatch.setenv("http_proxy", proxy.proxy_url)
        yield made


@pytest.mark.parametrize(
    "words",
    [
        ["pull", NAME, "--platform", "linux/amd64", "--progress", "none"],
        ["copy", NAME, "oci:{}/layout", "--platform", "linux/amd64", "--progress", "none"],
        ["tags", "registry.example/app"],
        ["catalog", "registry.example"],
        ["referrers", NAME],
        ["inspect", NAME, "--platform", "linux/amd64"],
        ["delete", NAME, "--dry-run"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_asks_without_tls(registry: Registry, tmp_path: Path, words: list[str]) -> None:
    assert main([*(word.format(tmp_path) for word in words), "--plain-http"]) == 0
    assert registry.ledger.count(host="registry.example") > 0


def test_a_push_too(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", NAME, "--platform", "linux/amd64", "--progress", "none", "--plain-http"]) == 0
    registry.ledger.clear()
    # The kit's registry takes no uploads.
    assert main(["push", NAME, "registry.example/app:2", "--progress", "none", "--plain-http"]) == 6
    assert "read-only" in capsys.readouterr().err
    assert registry.ledger.count(host="registry.example") > 0


def test_an_address_of_hosts_toml_is_used_as_it_is(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs.d" / "registry.example"
    folder.mkdir(parents=True)
    (folder / "hosts.toml").write_text('server = "https://127.0.0.1:1"\n')
    assert main(["tags", "registry.example/app", "--plain-http"]) == 6
    assert registry.ledger.entries == ()
    capsys.readouterr()


def test_it_is_not_for_a_cri_server(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--endpoint", "unix:///run/none.sock", "pull", NAME, "--plain-http"]) == 2
    assert "--plain-http is for a local store" in capsys.readouterr().err
