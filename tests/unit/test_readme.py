"""The README's examples run as they stand, against the recorded registry."""

from __future__ import annotations

import doctest
import re
import shlex
import shutil
from pathlib import Path

import pytest

from imagestore import config, platforms
from imagestore.cli.exit_codes import MEANINGS
from imagestore.cli.main import SECTIONS, main
from imagestore.testing import replay

TOP = Path(__file__).parents[2]

COMMANDS = [name for table in SECTIONS.values() for name in table]


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(TOP / "config.toml.example", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with replay(TOP / "fixtures" / "tapes" / "python-kep4216") as recorded, recorded.serve() as server:
        address = server.reference("docker.io/library/python:3").partition("/")[0]
        text = (TOP / "README.md").read_text("utf-8").replace("registry.example/", f"{address}/")
        test = doctest.DocTestParser().get_doctest(text, {}, "README.md", "README.md", 0)
        assert len(test.examples) > 5
        result = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(test)
    assert result.failed == 0


def test_the_lines_of_the_readme_work_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (TOP / "README.md").read_text("utf-8")
    (tmp_path / "config.toml").write_text(text.partition("```toml\n")[2].partition("```")[0])
    (tmp_path / "edgecore.yaml").write_text("apiVersion: edgecore.config.kubeedge.io/v1alpha2\nkind: EdgeCore\n")
    (tmp_path / "pod.json").write_text('{"spec": {"containers": [{"name": "a"}]}}')
    monkeypatch.chdir(tmp_path)
    for name, value in (("ROOT", "store"), ("CONFIG", "config.toml")):
        monkeypatch.setenv(f"IMAGESTORE_{name}", value)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    lines = text.partition("export IMAGESTORE_CONFIG=config.toml\n")[2].partition("```")[0].splitlines()
    with replay(TOP / "fixtures" / "tapes" / "python-kep4216") as recorded, recorded.serve() as server:
        python = server.reference("docker.io/library/python:3")
        for line in lines:
            named = re.sub(r"(?<= )python:3\b", python, line).replace("sha256:...", python)
            status = main(shlex.split(named, comments=True)[1:])
            assert (line, status, capsys.readouterr().err if status else "") == (line, 0, "")
    assert len(lines) > 20


def test_the_readme_lists_every_exit_status() -> None:
    text = (TOP / "README.md").read_text("utf-8")
    for status, meaning in MEANINGS.items():
        assert f"| {status.value} | {meaning} |" in text


def test_the_configuration_of_the_readme_is_a_good_one() -> None:
    text = (TOP / "README.md").read_text("utf-8")
    toml = text.partition("```toml\n")[2].partition("```")[0]
    found = config.loads(toml, host=platforms.parse("linux/amd64"))
    assert found.default_handler == "runc"
    assert (
        platforms.format_all(found.handler_platform("runhcs-wcow-hypervisor").platform) == "windows(10.0.17763)/amd64"
    )


def test_every_configuration_of_the_readme_begins_with_its_version() -> None:
    """Without one it is version 1, in which containerd wants other names of plugins and takes no notice of these."""
    text = (TOP / "README.md").read_text("utf-8")
    examples = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert any("proxy_plugins" in example for example in examples)
    for example in examples:
        assert re.match(r"version = [23]\n", example), example


def test_the_configuration_of_the_readme_has_no_warning_for_its_windows_handler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (TOP / "README.md").read_text("utf-8")
    (tmp_path / "config.toml").write_text(text.partition("```toml\n")[2].partition("```")[0])
    host = ("--host", "windows(10.0.20348.1970)/amd64")
    assert main(["--config", str(tmp_path / "config.toml"), "config", "check", *host]) == 0
    assert "warning" not in capsys.readouterr().out


def test_every_command_of_the_readme_exists() -> None:
    text = (TOP / "README.md").read_text("utf-8")
    used = set(re.findall(r"^imagestore (\w+)", text, re.MULTILINE)) | set(re.findall(r"`imagestore (\w+)", text))
    assert used
    assert used <= set(COMMANDS)
