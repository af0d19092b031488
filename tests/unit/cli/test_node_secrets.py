"""``imagestore node ensure --pull-secret``: who may use an image that is present."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.cli.exit_codes import ExitStatus
from imagestore.testing import BasicAuth, RegistryServer, build_index
from tests.support.linux_node import APP
from tests.unit.cli.node_lines import run


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A private image; folders ``right`` and ``wrong`` have a config.json each."""
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "nobody"))
    images = {APP: build_index(("linux/amd64", "linux/arm64"), seed="app")}
    with RegistryServer(images, auth=BasicAuth({"good": "right"})) as running:
        reference = running.server.reference(APP)
        for password in ("right", "wrong"):
            write_secret(tmp_path / password / "config.json", reference.partition("/")[0], password)
        yield reference


def write_secret(path: Path, host: str, password: str, **more: object) -> None:
    path.parent.mkdir(exist_ok=True)
    login = base64.b64encode(f"good:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": login}}, **more}))


def ensured(
    capsys: pytest.CaptureFixture[str], image: str, secret: str | Path, pod: str = "default/a"
) -> tuple[int, bool, str]:
    status, told = run(capsys, "ensure", image, "--policy", "IfNotPresent", "--pull-secret", str(secret), "--pod", pod)
    return status, told["pulled"], told["reason"]


def test_another_secret_in_a_file_of_the_same_name_proves_nothing(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "right")
    assert ensured(capsys, image, "config.json") == (0, True, "")
    assert ensured(capsys, image, "config.json") == (0, False, "")
    monkeypatch.chdir(tmp_path / "wrong")
    for _ in range(2):
        assert ensured(capsys, image, "config.json") == (ExitStatus.ACCESS, False, "ErrImagePull")
        assert ensured(capsys, image, tmp_path / "wrong" / "config.json", "other/b") == (
            ExitStatus.ACCESS,
            False,
            "ErrImagePull",
        )
    assert ensured(capsys, image, tmp_path / "right" / "config.json", "other/b") == (0, False, "")


def test_a_file_with_new_content_is_another_secret(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "right" / "config.json"
    assert ensured(capsys, image, path) == (0, True, "")
    write_secret(path, image.partition("/")[0], "wrong")
    assert ensured(capsys, image, path) == (ExitStatus.ACCESS, False, "ErrImagePull")
    # The same login in other words needs no pull: what counts is who it is.
    write_secret(path, image.partition("/")[0], "right", HttpHeaders={})
    assert ensured(capsys, image, path) == (0, False, "")
