"""``imagestore tape`` and ``imagestore record``, through click's runner."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from imagestore.cli.record import record
from imagestore.cli.tape import tape
from imagestore.testing import Registry, build_index, load_tape, make_tape, save_tape
from imagestore.testing.faults import FaultRule, Reset
from imagestore.testing.tapes.blob_folder import BlobFolder

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

IMAGE = build_index(["linux/amd64"])


@pytest.fixture
def path(tmp_path: Path) -> str:
    blobs = BlobFolder(str(tmp_path / "blobs"))
    made = make_tape({"registry.example/app:1": IMAGE}, blobs, about="one line", faults=[FaultRule(Reset(5))])
    return save_tape(tmp_path / "tapes" / "one", made)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(tape, list(arguments), catch_exceptions=False)


def test_verify_tells_good_from_bad(path: str, tmp_path: Path) -> None:
    good = run("verify", str(tmp_path / "tapes"))
    assert (good.exit_code, good.output) == (0, f"{path}: good\n")
    BlobFolder.beside(path).remove(IMAGE.target.digest)
    bad = run("verify", path)
    assert bad.exit_code == 7
    assert f"{path}: 1 problems\n  body {IMAGE.target.digest}: not in" in bad.output


def test_show_is_for_people_and_for_programs(path: str) -> None:
    text = run("show", path).output
    assert text.startswith("one line\nhosts: registry.example\nREPOSITORY")
    assert "fault: what reset, at 5" in text
    value = json.loads(run("show", "--output", "json", path).output)
    assert value["repositories"][0]["tags"] == {"1": str(IMAGE.target.digest)}
    assert value["faults"] == [{"what": "reset", "at": 5}]


def test_gc_deletes_surplus_bodies(path: str, tmp_path: Path) -> None:
    surplus = BlobFolder.beside(path).put(b"surplus")
    assert f"would delete {surplus}\n7B in 1 bodies" in run("gc", "--dry-run", str(tmp_path / "tapes")).output
    assert f"deleted {surplus}\n" in run("gc", str(tmp_path / "tapes")).output
    assert run("verify", path).exit_code == 0


def test_a_tape_goes_to_a_layout_and_back(path: str, tmp_path: Path) -> None:
    layout, back = str(tmp_path / "layout"), str(tmp_path / "tapes" / "back")
    assert run("to-layout", path, layout).output == f"{layout}: 1 entries\n"
    assert run("from-layout", layout, back, "--name", "x.example/y").exit_code == 0
    assert load_tape(back).repositories == load_tape(path).repositories


# Both modes go through a real child process, as users run it.
ASK = (
    "import sys, urllib.request as u; "
    "print(u.urlopen('http://' + sys.argv[1] + '/v2/app/tags/list', timeout=5).read().decode())"
)


def test_record_runs_a_command_and_keeps_what_it_asked(tmp_path: Path) -> None:
    registry = Registry({"registry.example/app:1": IMAGE})
    name = str(tmp_path / "tapes" / "one")
    with registry.serve() as server:
        options = [
            "--tape",
            name,
            "--upstream",
            f"registry.example={server.url()}",
            "--about",
            "by hand",
            "--mode",
            "rewrite",
        ]
        for where in ("{registry.example}", "registry.example"):
            command = [sys.executable, "-c", ASK, where]
            result = CliRunner().invoke(record, [*options, "--", *command], catch_exceptions=False)
            assert result.exit_code == 0, result.output
            assert "recorded 1 requests" in result.stderr
            scheme = {"{registry.example}": "https", "registry.example": "http"}[where]
            assert [one.url for one in load_tape(name).exchanges] == [f"{scheme}://registry.example/v2/app/tags/list"]
            assert load_tape(name).about == "by hand"


def test_record_of_a_failing_command_writes_nothing_and_passes_the_status_on(tmp_path: Path) -> None:
    name = str(tmp_path / "one")
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    result = CliRunner().invoke(record, ["--tape", name, "--", *command], catch_exceptions=False)
    assert (result.exit_code, list(tmp_path.iterdir())) == (3, [])
    missing = CliRunner().invoke(record, ["--tape", name, "--", "/nonexistent/program"])
    assert missing.exit_code == 1
