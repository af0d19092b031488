"""Commands where there is no store: those that only look make none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from imagestore.cli.main import main
from tests.unit.cli.lines import Line

ID = "sha256:" + "0" * 64


@pytest.mark.parametrize("words", ["check", "repair", "check --rebuild", "backup {tmp}/b", "export {tmp}/a.tar a:1"])
@pytest.mark.parametrize("is_folder_there", [False, True])
def test_what_would_call_nothing_good_says_that_nothing_is_there(
    line: Line, tmp_path: Path, words: str, is_folder_there: bool
) -> None:
    """A check from cron, whose disk isn't mounted."""
    if is_folder_there:
        line.root.mkdir()
    before = _everything(tmp_path)
    assert line(*words.format(tmp=tmp_path).split(), status=8) == ""
    assert f"there is no store in {line.root}\n" in line.error
    assert "--root" in line.error
    assert "mounted" in line.error
    assert _everything(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("images", 8),
        ("images -q", 8),
        ("images python", 8),
        ("df", 8),
        ("gc", 0),
        ("gc -n", 0),
        ("gc --keep-last 1", 0),
        ("rmi python", 3),
        ("rmi python --gc", 3),
        ("rmi python --ignore-missing", 0),
        ("leases list", 8),
        ("inspecti python", 8),
        ("why python", 8),
        (f"why {ID}", 8),
        ("match --offline python", 8),
        ("pin python", 3),
        ("untag python:1", 3),
        ("tag python python:1", 3),
        ("leases delete none", 3),
        ("fsinfo", 8),
        ("node gc", 8),
        ("node gc -n", 8),
    ],
)
def test_what_finds_nothing_makes_nothing(line: Line, tmp_path: Path, words: str, status: int) -> None:
    before = _everything(tmp_path)
    line(*words.split(), status=status)
    assert _everything(tmp_path) == before


@pytest.mark.parametrize("words", ["images", "images -q", "images -o json", "df", "leases list"])
def test_the_default_store_before_the_first_pull_is_an_empty_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str
) -> None:
    monkeypatch.delenv("IMAGESTORE_ROOT", raising=False)
    monkeypatch.setattr("imagestore.cli.app.default_root", lambda: tmp_path / "none")
    before = _everything(tmp_path)
    assert main(words.split()) == 0
    assert capsys.readouterr().err == ""
    assert _everything(tmp_path) == before


def test_a_dry_run_and_a_match_need_no_store(line: Line, tmp_path: Path) -> None:
    before = _everything(tmp_path)
    assert line.json("pull", "--dry-run", line.python)["bytesToFetch"] > 0
    line("match", line.python)
    assert _everything(tmp_path) == before


def test_what_the_default_store_takes_before_the_first_pull(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("IMAGESTORE_ROOT", raising=False)
    monkeypatch.setattr("imagestore.cli.app.default_root", lambda: tmp_path / "none")
    assert main(["df", "-o", "json"]) == 0
    usage = json.loads(capsys.readouterr().out)
    assert usage.pop("diskBytes") == shutil.disk_usage(tmp_path).total
    assert usage.pop("diskFreeBytes") > 0
    assert usage.pop("images") == []
    assert set(usage.values()) == {0}


@pytest.mark.parametrize("words", ["pull {python}", "leases create"])
def test_what_brings_something_makes_one(line: Line, words: str) -> None:
    line(*words.format(python=line.python).split())
    assert (line.root / "metadata.db").exists()


def test_an_import_makes_one(line: Line, tmp_path: Path) -> None:
    line("pull", line.python)
    line("export", f"{tmp_path}/a.tar", line.python)
    shutil.rmtree(line.root)
    line("import", f"{tmp_path}/a.tar")
    assert line("images", "-q") != ""


@pytest.mark.parametrize("command", ["images", "gc", "check"])
def test_content_without_its_database_is_no_empty_store(line: Line, command: str) -> None:
    line("pull", line.python)
    (line.root / "metadata.db").unlink()
    line(command, status=8)
    assert "check --rebuild" in line.error
    line("check", "--rebuild")
    assert line("images", "-q") != ""


def test_content_alone_is_rebuilt_from(line: Line) -> None:
    line("pull", line.python)
    (line.root / "metadata.db").unlink()
    shutil.rmtree(line.root / "copies")
    line("images", status=8)
    assert "check --rebuild" in line.error
    line("check", "--rebuild")
    line("images")


def test_the_empty_one_that_stands_for_it_goes_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "own"))
    assert main(["--root", str(tmp_path / "none"), "gc", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytesFreed"] == 0
    assert _everything(tmp_path) == ["own"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "closed"))
    assert main(["--root", str(tmp_path / "none"), "gc"]) == 8
    assert "there is no store in" in capsys.readouterr().err


def _everything(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


def test_folders_without_content_are_no_store_that_lost_its_database(line: Line) -> None:
    """What a first command leaves that is killed at once."""
    (line.root / "content" / "blobs" / "sha256").mkdir(parents=True)
    line("images", status=8)
    assert "there is no store in" in line.error
    assert line("rmi", "python", "--ignore-missing") == ""
    assert "no faults" in line("check", "--rebuild")
    (line.root / "metadata.db").unlink()
    (line.root / "content" / "blobs" / "sha256" / ("0" * 64)).touch()
    line("images", status=8)
    assert "check --rebuild" in line.error


@pytest.mark.parametrize("options", [["--scope", "team"], ["--content", "s3://bucket/images"]])
@pytest.mark.parametrize("words", [["images"], ["images", "-q"], ["df"]])
def test_what_belongs_to_a_shared_store_is_refused_for_a_folder(
    line: Line, options: list[str], words: list[str]
) -> None:
    line("gc")
    line(*options, *words, status=2)
    assert "a scope and a bucket belong to a store at postgresql://" in line.error
