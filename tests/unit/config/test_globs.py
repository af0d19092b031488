"""Patterns in imports mean what Go's path/filepath says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagestore.config.globs import compile_component, expand

ANSWERS = json.loads((Path(__file__).parents[3] / "fixtures/configs/go-globs.json").read_text("utf-8"))


@pytest.mark.parametrize("answer", ANSWERS["answers"], ids=lambda answer: repr(answer["pattern"]))
def test_patterns_fit_what_go_says(answer: dict[str, object]) -> None:
    pattern = answer["pattern"]
    assert isinstance(pattern, str)
    if answer["bad"]:
        with pytest.raises(ValueError, match=r"closed|can't stand|backslash"):
            compile_component(pattern)
    else:
        component = compile_component(pattern)
        assert [name for name in ANSWERS["names"] if component.fullmatch(name)] == answer["matches"]


def test_many_stars_take_no_time() -> None:
    assert not compile_component("*a" * 100 + "b").fullmatch("a" * 250)


def test_expanding_finds_hidden_files_in_byte_order(tmp_path: Path) -> None:
    for name in ("b.toml", ".a.toml", "B.toml", "a.toml", "a.toml.bak", "é.toml"):
        (tmp_path / name).touch()
    found = expand(f"{tmp_path}/*.toml")
    assert [Path(path).name for path in found] == [".a.toml", "B.toml", "a.toml", "b.toml", "é.toml"]


def test_a_pattern_without_a_folder_looks_in_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert expand("*.toml") == ["a.toml"]


def test_expanding_goes_through_folder_patterns(tmp_path: Path) -> None:
    for name in ("x1", "x2", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "c.toml").touch()
    (tmp_path / "x3").touch()
    assert expand(f"{tmp_path}/x*/c.toml") == [f"{tmp_path}/x1/c.toml", f"{tmp_path}/x2/c.toml"]


def test_a_pattern_may_find_nothing(tmp_path: Path) -> None:
    assert expand(f"{tmp_path}/missing/*.toml") == []
    assert expand(f"{tmp_path}/plain") == []
