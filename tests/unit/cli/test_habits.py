"""What people bring along from docker, crane, ctr and kubectl: words, options and statuses they expect."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
from collections import namedtuple
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imagestore.cli.main import main
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, build_index, layer
from imagestore.testing.faults import Stall
from tests.support.node import HYPERV, PROCESS
from tests.support.patience import until
from tests.unit.cli.lines import Line

if TYPE_CHECKING:
    from collections.abc import Callable

Usage = namedtuple("Usage", "total used free")


def test_quiet_pulls_print_image_ids_alone(line: Line) -> None:
    ids = line("pull", "--quiet", line.python).splitlines()
    assert line.error == ""
    assert ids == [each["id"] for each in line.json("images")["images"]]


def test_a_quiet_pull_has_no_json(line: Line) -> None:
    line("pull", "-q", "-o", "json", line.python, status=2)


def test_one_pull_serves_every_configured_handler(line: Line) -> None:
    line("pull", "--all-handlers", line.python)
    assert {PROCESS, HYPERV} <= {each["runtimeHandler"] for each in line.json("images")["images"]}
    line("pull", "--all-handlers", "--runtime-handler", HYPERV, line.python, status=2)
    assert "exclude each other" in line.error


def test_a_pull_that_replaces_another_platforms_image_notes_it(line: Line) -> None:
    line("pull", line.python, "--platform", "windows(10.0.17763)/amd64")
    assert "replaces" not in line.error
    line("pull", line.python, "--platform", "windows(10.0.20348)/amd64")
    assert "replaces the image for windows(10.0.17763" in line.error
    line("pull", line.python, "--platform", "windows(10.0.20348)/amd64")
    assert "replaces" not in line.error


def test_a_dry_run_says_that_the_disk_is_too_small_and_ends_as_the_pull_would(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 90, 10))
    line("pull", "--dry-run", line.python, status=8)
    assert "the disk has 10B free, the pull needs" in line.error


def test_a_dry_removal_removes_nothing(line: Line) -> None:
    line("pull", line.python)
    line("tag", line.python, "python:3")
    shown = line("rmi", "--dry-run", "python:3")
    assert shown.splitlines()[0].startswith("would remove docker.io/library/python:3 (")
    assert shown.splitlines()[1].startswith(f"would keep {line.python} (")
    planned = line.json("rmi", "-n", "python:3", "nothing", status=3)
    assert (planned["dryRun"], planned["missing"], len(planned["removed"])) == (True, ["nothing"], 1)
    assert len(line.json("images")["images"]) == 2


def test_a_pinned_image_goes_by_force_only(line: Line) -> None:
    line("pull", line.python)
    line("tag", line.python, "python:3")
    line("pin", line.python)
    line("rmi", "python:3", status=1)
    assert "pinned, so nothing was removed: docker.io/library/python:3 (" in line.error
    assert "--force" in line.error
    assert len(line.json("images")["images"]) == 2
    line("rmi", "--force", "python:3")
    line("unpin", line.python)
    line("rmi", line.python)
    assert line.json("images")["images"] == []


def test_an_image_that_the_configuration_pins_goes_by_force_only(line: Line) -> None:
    line.config.write_text(line.config.read_text() + _pinning(line.python))
    line("pull", line.python)
    line("rmi", line.python, status=1)
    line("rmi", "-f", line.python)


def _pinning(reference: str) -> str:
    return f'\n[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "{reference}"\n'


def test_an_error_for_a_global_option_after_the_command_says_where_it_goes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["node", "gc", "--root", "/x"]) == 2
    assert "It goes before the command: imagestore --root ... node gc" in capsys.readouterr().err
    assert main(["images", "--rot", "/x"]) == 2
    assert "goes before" not in capsys.readouterr().err


def test_an_error_for_a_file_as_output_format_explains_redirection(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["images", "-o", "images.txt"]) == 2
    assert "redirect the output: > FILE" in capsys.readouterr().err


def test_help_shows_commands_under_headings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    headings = [each for each in shown if each in ("Images:", "Registries:", "Store:", "Nodes and servers:")]
    assert len(headings) == 4


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete -"), ("zsh", "#compdef"), ("fish", "complete ")])
def test_completion_for_each_shell_is_one_command(capsys: pytest.CaptureFixture[str], shell: str, word: str) -> None:
    assert main(["completion", shell]) == 0
    program = capsys.readouterr().out
    assert word in program
    assert "_IMAGESTORE_COMPLETE" in program
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=program, text=True, check=True)


def test_a_backup_is_restored_and_what_was_there_is_kept(line: Line, tmp_path: Path) -> None:
    line("pull", line.python)
    line("backup", f"{tmp_path}/records")
    line("rmi", line.python)
    shown = line.json("restore", f"{tmp_path}/records")
    assert Path(shown["keptAs"]).is_file()
    assert [each["reference"] for each in line.json("images")["images"]] == [line.python]
    line("check")


def test_a_backup_makes_a_store_where_none_is(line: Line, tmp_path: Path) -> None:
    line("pull", line.python)
    line("backup", f"{tmp_path}/records")
    shutil.rmtree(line.root)
    assert line.json("restore", f"{tmp_path}/records")["keptAs"] is None
    assert len(line.json("images")["images"]) == 1
    line("repair")
    line("check")


@pytest.mark.parametrize("data", [b"", b"no database", None], ids=["empty", "text", "absent"])
def test_what_is_no_backup_replaces_nothing(line: Line, tmp_path: Path, data: bytes | None) -> None:
    line("pull", line.python)
    if data is not None:
        (tmp_path / "records").write_bytes(data)
    line("restore", f"{tmp_path}/records", status=2)
    assert f"{tmp_path}/records: " in line.error
    assert len(line.json("images")["images"]) == 1
    assert sorted(line.root.glob("metadata.db.*")) == []


def test_a_damaged_backup_replaces_nothing(line: Line, tmp_path: Path) -> None:
    line("pull", line.python)
    line("backup", f"{tmp_path}/records")
    data = bytearray((tmp_path / "records").read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    (tmp_path / "records").write_bytes(data)
    line("restore", f"{tmp_path}/records", status=2)
    assert "backup" in line.error
    assert len(line.json("images")["images"]) == 1


def test_a_folder_of_hosts_that_cannot_be_used_fails_the_check(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "certs.d" / "registry.example"
    folder.mkdir(parents=True)
    (folder / "hosts.toml").write_text("server = [")
    config = tmp_path / "config.toml"
    config.write_text(
        f'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{tmp_path}/certs.d"\n'
    )
    assert main(["config", "check", str(config), "-o", "json"]) == 9
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [each["severity"] for each in findings] == ["error"]


def test_a_strict_check_fails_for_warnings_but_not_for_notes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('version = 3\n[plugins."io.containerd.cri.v1.images"]\nsnapshoter = "overlayfs"\n')
    assert main(["config", "check", str(config)]) == 0
    assert "warning: " in capsys.readouterr().out
    assert main(["config", "check", "--strict", str(config)]) == 9
    config.write_text("version = 3\n")
    assert main(["config", "check", "--strict", str(config)]) == 0


@pytest.mark.parametrize("columns", [40, 120])
def test_progress_on_a_terminal_fits_it_and_totals_what_comes(line: Line, columns: int) -> None:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    command = [sys.executable, "-m", "imagestore", "--root", str(line.root), "--config", str(line.config)]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment["TERM"] = "xterm"
    pull = [*command, "pull", line.python]
    try:
        done = subprocess.run(pull, stdout=subprocess.PIPE, stderr=slave, check=True, env=environment)
    finally:
        os.close(slave)
    with open(master, "rb", buffering=0) as terminal:
        shown = _everything(terminal)
    rows = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))
    totals = [row for row in rows if row.startswith("total")]
    assert totals
    assert re.search(r"[0-9.]+(B|KiB|MiB)/[0-9.]+(B|KiB|MiB)", totals[-1])
    assert all(len(row) <= columns for row in totals)
    assert done.stdout.startswith(line.python.encode())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes standard output a terminal of so many columns."""

    def _of(columns: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))

    return _of


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_matrix_fits_the_terminal(
    tmp_path: Path, terminal: Callable[[int], None], capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """Twenty handlers: in one table, under letters, or in several tables."""
    runtimes = (
        '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{}]\nruntime_type = "io.containerd.runc.v2"\n'
    )
    names = [f"handler-{number}" for number in range(20)]
    config = tmp_path / "config.toml"
    config.write_text("version = 3\n" + "".join(runtimes.format(name) for name in names))
    index = Path(__file__).parents[3] / "fixtures/indexes"
    path = sorted(index.rglob("*.json"))[0]
    chosen = [word for name in names for word in ("--runtime-handler", name)]
    terminal(columns)
    main(["--root", str(tmp_path / "root"), "--config", str(config), "match", "--index", str(path), *chosen])
    shown = capsys.readouterr().out
    matrix = shown.partition(" wants ")[0].splitlines()[:-1]
    assert sum(line.startswith("ENTRY") for line in matrix) >= (2 if columns == 40 else 1)
    assert max(map(len, matrix)) <= columns, matrix
    for name in names:
        assert name in "\n".join(matrix)


@pytest.mark.parametrize("columns", [40, 60])
def test_a_long_platform_is_cut_where_the_matrix_would_not_fit(
    tmp_path: Path, terminal: Callable[[int], None], capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    entry: dict[str, object] = dict(build_image().target.members())
    entry["platform"] = {"os": "windows", "architecture": "amd64", "os.version": "10.0.20348.1970" * 20}
    index = tmp_path / "index.json"
    media_type = "application/vnd.oci.image.index.v1+json"
    index.write_text(json.dumps({"schemaVersion": 2, "mediaType": media_type, "manifests": [entry]}))
    terminal(columns)
    main(["--root", str(tmp_path / "root"), "match", "--index", str(index)])
    matrix = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert matrix[0].startswith("ENTRY")
    assert "windows(10." in matrix[1]
    assert max(map(len, matrix)) <= columns, matrix


def _everything(terminal: io.FileIO) -> str:
    """What was written; a terminal whose other end is closed ends with EIO."""
    parts = []
    with contextlib.suppress(OSError):
        while part := terminal.read(65536):
            parts.append(part)
    return b"".join(parts).decode()


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        ("inspecti nothing:1 -o json", "not_found", 3),
        ("inspecti nothing:1 --output=json", "not_found", 3),
        ("-o json images", "invalid_argument", 2),
        ("images --bogus -ojson", "invalid_argument", 2),
        ("pull :bad: --output json", "invalid_argument", 2),
    ],
)
def test_a_program_that_reads_json_reads_errors_as_json(line: Line, words: str, code: str, status: int) -> None:
    line("pull", line.python)
    assert line(*words.split(), status=status) == ""
    (told,) = line.error.splitlines()
    error = json.loads(told)
    assert (error["code"], error["status"], sorted(error)) == (code, status, ["code", "hint", "message", "status"])
    assert error["message"]


def test_output_of_another_program_is_not_ours(line: Line) -> None:
    line("inspecti", "nothing:1", "--", "-o", "json", status=2)
    assert line.error.startswith("Usage: ")


@pytest.mark.parametrize(
    ("word", "command"),
    [("list", "images"), ("ls", "images"), ("save", "export"), ("load", "import"), ("get", "pull"), ("pul", "pull")],
)
def test_words_of_other_tools_lead_to_the_command(line: Line, word: str, command: str) -> None:
    line(word, status=2)
    assert f"Did you mean '{command}'" in line.error


def test_an_interrupted_pull_says_what_the_next_one_goes_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    whole = layer("large", size=4_000_000)
    fault = FaultRule(Stall(at=3_000_000), Where(kind="blob", reference=str(whole.digest)), times=0)
    with RegistryServer({"a.example/a:1": build_image("linux/amd64", layers=[whole])}, faults=[fault]) as server:
        line = Line(tmp_path, capsys, server)

        def interrupt() -> None:
            until(lambda: any(ingest.stat().st_size for ingest in line.root.glob("content/ingest/*/data")), "half came")
            os.kill(os.getpid(), signal.SIGINT)

        killer = threading.Thread(target=interrupt)
        killer.start()
        line("pull", "--quiet", server.server.reference("a.example/a:1"), "--platform", "linux/amd64", status=130)
        killer.join()
    told = r"imagestore: interrupted; the next pull goes on from here, with [0-9.]+[KM]iB\n"
    assert re.fullmatch(told, line.error)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("python:3 x2.tar", "write oci-archive:x2.tar, or the repository with its host"),
        ("python:3 there", "write oci:there, or the repository with its host"),
        ("there registry.example/a:1", "write oci:there"),
        ("python:3 oci:layout:1", "write oci:layout --name REF"),
        ("oci:layout:1 registry.example/a:1", "write oci:layout --image REF"),
        ("python:3 docker://registry.example/a:1", "leave out docker://"),
    ],
)
def test_places_in_other_tools_words_are_refused_by_name(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    line("copy", *words.split(), status=2)
    assert said in line.error


def test_what_a_quiet_copy_leaves_out_is_said(line: Line, tmp_path: Path) -> None:
    out = line("copy", line.python, f"oci:{tmp_path}/layout", "--runtime-handler", PROCESS, "--quiet")
    assert out.startswith("sha256:")
    assert line.error.startswith("imagestore: left out: ")
    (tmp_path / "odd:1").mkdir()
    line("copy", line.python, f"oci:{tmp_path}/odd:1", "--runtime-handler", PROCESS, "--quiet")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("copy a.example/a:1 b.example/a:1 --name foo", "--name is for a destination"),
        ("copy a.example/a:1 b.example/a:1 --image foo", "--image is for a source"),
        ("copy a.example/a:1 oci:layout --replace", "--replace is for the store"),
        ("catalog a.example/team", "expected a registry's host"),
    ],
)
def test_what_would_have_no_effect_is_refused(line: Line, words: str, said: str) -> None:
    line(*words.split(), status=2)
    assert said in line.error


def test_attestations_go_along_and_are_no_platforms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    index = build_index(["linux/amd64", "linux/arm64"], attestations=True)
    with RegistryServer({"a.example/a:1": index}) as server:
        name, layout = server.server.reference("a.example/a:1"), tmp_path / "layout"
        copied = Line(tmp_path, capsys, server).json("copy", name, f"oci:{layout}", "--all-platforms")
    assert copied["platforms"] == ["linux/amd64", "linux/arm64"]
    assert all((layout / "blobs" / "sha256" / digest.encoded).exists() for digest in index.documents)
