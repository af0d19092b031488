"""What is understood without the library of options means there what it means here; all else is left to it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagestore.cli.main import cli
from imagestore.cli.quick import understand

if TYPE_CHECKING:
    from pathlib import Path

WORDS = [
    *("pull", "images", "rmi", "gc", "inspecti", "", "-", "--", "-h", "--help", "--version", "--debug"),
    *("--root", "--root=", "--root=/a", "--config", "--config=/none.toml", "/b", "--source", "--endpoint", "unix:///x"),
    *("python:3", "registry.example/a:1", "sha256:abc", "windows(10.0.17763)/amd64", "runc", "=", "a=b", "ä", "\udcff"),
    *(
        "--runtime-handler",
        "--runtime-handler=kata",
        "--platform",
        "--platform=linux/amd64",
        "--progress",
        "none",
        "bar",
    ),
    *(
        "--progress=plain",
        "--progress=loud",
        "-o",
        "json",
        "table",
        "yaml",
        "-ojson",
        "-o=json",
        "--output=json",
        "--out",
    ),
    *("-q", "--quiet", "-qo", "--no-trunc", "--gc", "--all-handlers", "--dry-run", "-n", "--anonymous", "--quiet=1"),
]
#: Lines as people write them, so that many are understood.
SENSIBLE = st.tuples(
    st.lists(
        st.sampled_from(
            [("--root", "/a"), ("--root=/b",), ("--config", "/none.toml"), ("--endpoint", "unix:///x"), ()]
        ),
        max_size=2,
    ),
    st.sampled_from(["pull", "images", "rmi"]),
    st.lists(
        st.one_of(
            st.sampled_from(
                [
                    *(("--runtime-handler", "kata"), ("--runtime-handler=runc",), ("--platform", "linux/amd64")),
                    *(("-o", "json"), ("--output=table",), ("--progress", "none"), ("--progress=json",)),
                    *(("-q",), ("--quiet",), ("--no-trunc",), ("--gc",), ("--all-handlers",), ("a",), ("b:1",)),
                ]
            ),
            st.sampled_from(WORDS).map(lambda word: (word,)),
        ),
        max_size=5,
    ),
).map(lambda parts: [*(word for pair in parts[0] for word in pair), parts[1], *(w for pair in parts[2] for w in pair)])


def library_reads(words: list[str]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Command, global options and the command's parameters as the library of options reads them."""
    with cli.make_context("imagestore", list(words)) as outer:
        name, command, rest = cli.resolve_command(outer, [*outer._protected_args, *outer.args])
        assert name is not None
        assert command is not None
        with command.make_context(name, rest, parent=outer) as inner:
            return name, dict(outer.params), dict(inner.params)


@settings(max_examples=400)
@given(words=st.one_of(SENSIBLE, st.lists(st.sampled_from(WORDS), max_size=6)))
def test_what_is_understood_is_what_the_library_reads(words: list[str]) -> None:
    line = understand(words)
    if line is None:
        return
    name, outer, inner = library_reads(words)
    assert line.command == name
    assert outer["root"] == line.root if line.root is None else str(outer["root"]) == line.root
    assert outer["config_path"] == line.config_path or str(outer["config_path"]) == line.config_path
    assert outer["endpoint"] == line.endpoint
    left = {name: value for name, value in outer.items() if name not in ("root", "config_path", "endpoint")}
    assert not any(left.values()), left
    arguments = inner.pop({"pull": "references", "images": "name", "rmi": "names"}[name])
    assert tuple(line.arguments) == (arguments if isinstance(arguments, tuple) else (arguments,) if arguments else ())
    assert inner.pop("output") == (line.value("output") or "table")
    if name == "pull":
        assert inner.pop("progress") == (line.value("progress") or "auto")
        assert inner.pop("handlers") == line.values.get("handlers", ())
        assert inner.pop("platform") == line.value("platform")
    else:
        assert inner.pop("runtime_handler") == line.value("runtime_handler")
    assert {name for name, value in inner.items() if value} == line.flags


@pytest.mark.parametrize(
    "words",
    [
        ["pull", "python:3"],
        ["--root", "/a", "pull", "--runtime-handler", "kata", "--runtime-handler=runc", "python:3", "-o", "json"],
        ["pull", "--platform=linux/amd64", "--progress=none", "a", "b"],
        ["images"],
        ["images", "-q", "--no-trunc", "python"],
        ["rmi", "--gc", "a", "--all-handlers"],
        ["--endpoint", "unix:///x", "images"],
        ["--endpoint=unix:///x", "pull", "--runtime-handler", "kata", "a", "--progress", "none"],
        ["--endpoint", "unix:///x", "rmi", "a", "--all-handlers"],
    ],
)
def test_plain_lines_are_understood(words: list[str]) -> None:
    assert understand(words) is not None


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["pull"],
        ["pull", "--help"],
        ["pull", "--runtime-handler", "a", "--platform", "b", "c"],
        ["rmi", "--all-handlers", "--runtime-handler", "a", "b"],
        ["images", "a", "b"],
        ["pull", "--dry-run", "a"],
        ["--endpoint", "crictl", "images"],
        ["--endpoint", "unix:///x", "pull", "--platform", "linux/amd64", "a"],
        ["--endpoint", "unix:///x", "rmi", "--gc", "a"],
        ["--endpoint", "unix:///x", "pull", "--progress=json", "a"],
        ["--endpoint", "unix:///x", "--root", "/a", "images"],
        ["--config", "/none.toml", "--endpoint", "unix:///x", "images"],
        ["gc"],
    ],
)
def test_everything_else_is_left_to_the_library(words: list[str]) -> None:
    assert understand(words) is None


def test_a_root_that_is_no_folder_is_left_to_the_library(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert understand(["--root", str(tmp_path / "file"), "images"]) is None
    assert understand(["--root", str(tmp_path / "none"), "images"]) is not None


def test_a_root_that_is_closed_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever needs it says so, and with --endpoint nobody does."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert understand(["--root", str(tmp_path), "--config", str(tmp_path), "images"]) is not None


def test_variables_stand_for_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path))
    line = understand(["images"])
    assert line is not None
    assert line.root == str(tmp_path)
    monkeypatch.setenv("IMAGESTORE_SOURCES", "/a")
    assert understand(["images"]) is None


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The command as users start it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("IMAGESTORE_")}
    command = [sys.executable, "-m", "imagestore", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


@pytest.mark.parametrize(
    "words",
    [
        ["images"],
        ["images", "-o", "json"],
        ["images", "-q"],
        ["rmi", "nothing:1"],
        ["rmi", "--gc", "nothing:1", "-o", "json"],
        ["rmi", "not a name"],
        ["pull", "Not/A:Name", "a:1"],
        ["pull", "--runtime-handler", "unknown", "registry.invalid/a:1"],
    ],
)
def test_both_ways_say_the_same(tmp_path: Path, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    from imagestore.cli.main import main

    quick = run("--root", str(tmp_path / "quick"), *words)
    assert understand(words) is not None
    status = main(["--root", str(tmp_path / "slow"), *words])
    out, err = capfd.readouterr()
    assert (quick.returncode, quick.stdout, quick.stderr) == (status, out, err)


def test_the_library_of_options_is_not_loaded_for_plain_lines(tmp_path: Path) -> None:
    code = "import sys; from imagestore.cli import quick; quick.run(sys.argv[1:]); print('click' in sys.modules)"
    command = [sys.executable, "-c", code, "--root", str(tmp_path), "images"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.endswith("False\n")
