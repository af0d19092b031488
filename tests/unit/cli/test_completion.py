"""What shells complete: it is correct, fast, and silent on errors."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete

from imagestore.cli.main import cli, main
from tests.support.node import HYPERV, PROCESS
from tests.unit.cli.lines import Line


def completed(line: Line, *words: str, incomplete: str = "") -> list[str]:
    where = ["--root", str(line.root), "--config", str(line.config)]
    found = ShellComplete(cli, {}, "imagestore", "_IMAGESTORE_COMPLETE").get_completions([*where, *words], incomplete)
    return [each.value for each in found]


@pytest.mark.parametrize(
    "command",
    [
        *(("pull",), ("images",), ("inspecti", "a"), ("rmi", "a"), ("tag", "a", "b"), ("untag", "a"), ("pin", "a")),
        *(("unpin", "a"), ("gc",), ("export", "file", "a"), ("import", "file"), ("match",), ("node", "ensure", "a")),
        *(("publish", "a"), ("unpublish", "a")),
    ],
    ids=" ".join,
)
def test_every_runtime_handler_option_completes_those_of_the_configuration(
    line: Line, command: tuple[str, ...]
) -> None:
    assert completed(line, *command, "--runtime-handler", incomplete="runhcs") == [PROCESS, HYPERV]
    assert not line.root.exists()


def test_names_complete_the_images_of_the_store(line: Line) -> None:
    line("pull", line.python, "--runtime-handler", HYPERV, "--runtime-handler", PROCESS)
    line("tag", line.python, "python:3", "--all-handlers")
    commands = ("pull", "images", "inspecti", "rmi", "tag", "untag", "pin", "unpin", "why", "match")
    publishing = ("publish", "unpublish")
    for command in [*((each,) for each in (*commands, *publishing)), ("export", "file"), ("node", "ensure")]:
        assert completed(line, *command) == [line.python, "python:3"]
    assert completed(line, "rmi", incomplete="py") == ["python:3"]
    assert completed(line, "rmi", incomplete="docker.io/lib") == ["docker.io/library/python:3"]
    assert completed(line, "--endpoint", "unix:///run/x.sock", "rmi") == []


def test_what_can_not_be_read_completes_nothing_and_makes_nothing(
    line: Line, capsys: pytest.CaptureFixture[str]
) -> None:
    line.config.write_text("[")
    assert completed(line, "rmi") == completed(line, "rmi", "--runtime-handler") == []
    assert not line.root.exists()
    line.root.mkdir()
    (line.root / "metadata.db").write_bytes(b"no database")
    assert completed(line, "rmi") == []
    assert [each.name for each in line.root.iterdir()] == ["metadata.db"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_that_ask_get_a_program(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_IMAGESTORE_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    out, error = capsys.readouterr()
    assert "_IMAGESTORE_COMPLETE" in out
    assert error == ""
