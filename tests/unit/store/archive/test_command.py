"""``imagestore export`` and ``imagestore import`` as their users meet them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from imagestore.cli.main import main
from imagestore.testing import build_index
from tests.support.commands import Commands
from tests.support.node import CONFIG, HYPERV, PROCESS, PYTHON, python_image
from tests.unit.store.archive.making import layout_files, write

HOST_TABLE = """
[plugins."io.containerd.cri.v1.images".runtime_platforms.runhcs-wcow-process]
platform = "windows(10.0.20348)/amd64"
"""


class Line(Commands):
    """Runs commands on a store that has python for two handlers."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG + HOST_TABLE)
        super().__init__(capture, "--root", str(folder / "store"), "--config", str(self.config))
        self.archive = str(write(folder / "python.tar", layout_files({PYTHON: python_image()})))
        self("import", self.archive, "--runtime-handler", HYPERV, "--runtime-handler", "kata")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(tmp_path, capsys)


def test_import_names_image_handler_and_id(run: Line) -> None:
    out = run("import", run.archive)
    assert out.splitlines()[0].startswith(f"{PYTHON} ({PROCESS}): sha256:")
    assert "of the archive were not needed" in out
    assert f"{PYTHON}: resolved to sha256:" in run.error


def test_import_in_json(run: Line) -> None:
    shown = run.json("import", run.archive, "--progress", "none", "--all-handlers")
    assert [each["runtimeHandler"] for each in shown["images"]] == [PROCESS, HYPERV, "kata", "runc"]
    assert shown["unusedBlobs"] > 0
    assert shown["unusedBytes"] > 0


def test_export_says_what_goes_and_what_stays(run: Line) -> None:
    archive = str(run.folder / "out.tar")
    out = run("export", archive, PYTHON, "--runtime-handler", "kata").splitlines()
    assert out[0] == f"{PYTHON}: linux/amd64"
    assert out[1].startswith(f"{PYTHON}: not in the archive: linux/arm64, windows(")
    assert out[2].endswith(f"written to {archive}")
    shown = run.json("export", archive, PYTHON, "--runtime-handler", "kata")
    assert shown["images"][0]["platforms"] == ["linux/amd64"]
    assert len(shown["images"][0]["leftOut"]) == 3
    assert shown["size"] == Path(archive).stat().st_size


@pytest.mark.parametrize("form", ["oci-archive", "oci", "docker-archive"])
def test_every_format_comes_back(run: Line, form: str) -> None:
    archive = str(run.folder / "out")
    run("export", archive, PYTHON, "--runtime-handler", "kata", "--format", form)
    out = run("--root", str(run.folder / "other"), "import", archive, "--runtime-handler", "kata")
    there = run.json("images", "--runtime-handler", "kata")["images"][0]
    assert f"{PYTHON} (kata): {there['id']}" in out


def test_an_archive_goes_through_a_pipe(run: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(run.folder / "pipe", "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        where = ["--root", str(run.folder / "store"), "--config", str(run.config)]
        assert main([*where, "export", "-", PYTHON, "--runtime-handler", "kata", "--progress", "none"]) == 0
        monkeypatch.undo()
    run("export", str(run.folder / "out.tar"), PYTHON, "--runtime-handler", "kata")
    assert (run.folder / "pipe").read_bytes() == (run.folder / "out.tar").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["export", "-", PYTHON, "-o", "json"], 2, "standard output can't carry"),
        (["export", "-", PYTHON, "--format", "oci"], 2, "standard output can't carry"),
        (["export", "x", PYTHON, "--all-handlers", "--platform", "linux/amd64"], 2, "exclude each other"),
        (["export", "x", PYTHON, "--all-platforms", "--platform", "linux/amd64"], 2, "exclude each other"),
        (["export", "x", "nothing:1"], 3, "is not in the store"),
        (["export", "x", PYTHON, "--platform", "linux/s390x"], 4, "no manifest for linux/s390x"),
        (["export", "{folder}/none/x.tar", PYTHON, "--platform", "linux/amd64"], 2, "No such file"),
        (["export", "{folder}", PYTHON, "--platform", "linux/amd64"], 2, "Is a directory"),
        (["backup", "{folder}/none/x"], 2, "No such file"),
        (["backup", "{folder}/config.toml"], 1, "expected a new file"),
        (["backup", ""], 2, "expected a path"),
        (["import", "x", "--all-handlers", "--runtime-handler", "kata"], 2, "exclude each other"),
        (["import", "none.tar"], 2, "none.tar: can't be read: No such file or directory"),
        (["import", "{folder}/config.toml"], 7, "is no tar archive"),
        (["import", "{folder}/python.tar", "--image", "other:1"], 3, f"it has {PYTHON}"),
        (["import", "{folder}/python.tar", "--platform", "linux/s390x"], 4, "no manifest for linux/s390x"),
        (["import", "{folder}/python.tar", "--runtime-handler", "none"], 9, "known handlers"),
    ],
)
def test_failures_have_their_exit_status_and_one_clear_line(
    run: Line, arguments: list[str], status: int, words: str
) -> None:
    assert run(*(each.format(folder=run.folder) for each in arguments), status=status) == ""
    assert words in run.error


def test_a_taken_name_is_refused_with_a_hint(run: Line) -> None:
    moved = str(write(run.folder / "moved.tar", layout_files({PYTHON: build_index(["linux/amd64"], seed="moved")})))
    run("import", moved, "--runtime-handler", "kata", status=1)
    assert "hint: --replace moves the name" in run.error
    run("import", moved, "--runtime-handler", "kata", "--name", "moved:1")
    run("import", moved, "--runtime-handler", "kata", "--replace")
    images = run.json("images", "--runtime-handler", "kata")["images"]
    assert len({each["id"] for each in images}) == 1
