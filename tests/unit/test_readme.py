"""The README's examples run as they stand, against the recorded registry."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from imagestore.cli.failure import MEANINGS
from imagestore.testing import replay

TOP = Path(__file__).parents[2]


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TOP)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with replay(TOP / "fixtures" / "tapes" / "python-kep4216") as recorded, recorded.serve() as server:
        address = server.reference("docker.io/library/python:3").partition("/")[0]
        text = (TOP / "README.md").read_text("utf-8").replace("registry.example/", f"{address}/")
        test = doctest.DocTestParser().get_doctest(text, {"root": tmp_path / "store"}, "README.md", "README.md", 0)
        assert len(test.examples) > 5
        result = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(test)
    assert result.failed == 0


def test_the_readme_lists_every_exit_status() -> None:
    text = (TOP / "README.md").read_text("utf-8")
    for status, meaning in MEANINGS.items():
        assert f"| {status.value} | {meaning} |" in text
