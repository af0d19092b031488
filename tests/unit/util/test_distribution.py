"""What the installed distribution says of itself, and the other project with the package's name."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from imagestore.cli.main import main
from imagestore.util.distribution import DISTRIBUTION, commit, other_project

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

COMMIT = "4d9b1e0c6f5a4b3c2d1e0f9a8b7c6d5e4f3a2b1c"


def installed(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A folder of packages with one distribution in it."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (about / file).write_text(text)
    return folder


def test_the_commit_is_the_one_that_pip_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = {"url": "https://git.example/imagestore", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}
    monkeypatch.syspath_prepend(installed(tmp_path, DISTRIBUTION, "9", {"direct_url.json": json.dumps(noted)}))
    assert commit(tmp_path) == COMMIT


def test_no_commit_is_known_of_a_wheel_or_a_copied_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "wheel", DISTRIBUTION, "9", {}))
    assert commit(tmp_path) == ""
    noted = json.dumps({"url": "file:///clone", "dir_info": {}})
    monkeypatch.syspath_prepend(installed(tmp_path / "copied", DISTRIBUTION, "9", {"direct_url.json": noted}))
    assert commit(tmp_path) == ""


def test_the_commit_of_a_clone_is_the_one_that_git_names(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert commit(tmp_path) == ""  # none yet
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    named = subprocess.run([*git, "log", "--format=%H"], check=True, capture_output=True, text=True)
    assert commit(tmp_path) == named.stdout.strip() != ""


def test_another_project_of_the_name_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert other_project() == ""
    monkeypatch.syspath_prepend(installed(tmp_path, "imagestore", "3.1.0", {}))
    assert other_project() == "imagestore 3.1.0"
    assert main(["version"]) == 0
    error = capsys.readouterr().err
    assert error.startswith(
        "imagestore: warning: imagestore 3.1.0, another project, is installed in the same environment"
    )
    assert f"install {DISTRIBUTION} again" in error


def test_what_another_project_left_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("imagestore.__all__", [])
    assert main(["version"]) == 0
    error = capsys.readouterr().err
    assert error.startswith("imagestore: warning: oci-imagestore's own imagestore/__init__.py is not there any more")
