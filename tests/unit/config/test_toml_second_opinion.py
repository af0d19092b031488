"""A second TOML parser agrees on real configurations, and its misreadings are why it reads nothing else here.

``toml`` 0.10.2 is widely used and unmaintained. On what containerd nodes ship today it agrees with the standard
library; on the legal texts below it loses or changes values without a word. Once it is fixed, these tests say so.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import toml

from imagestore import config
from imagestore.platforms import Platform

ROOT = Path(__file__).parents[3]
FILES = [*sorted((ROOT / "fixtures/configs").rglob("*.toml")), ROOT / "config.toml.example"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_both_parsers_agree_on_real_configurations(path: Path) -> None:
    text = path.read_text("utf-8")
    assert toml.loads(text) == tomllib.loads(text)


MISREAD = {
    "a comment after a multi-line string empties the document": (
        'motd = """one\ntwo""" # why\nroot = "/a"\n',
        {"motd": "one\ntwo", "root": "/a"},
        {},
    ),
    "a byte-order mark becomes part of the first key": (
        "\ufeffversion = 3\n",
        {"version": 3},
        {"\ufeffversion": 3},
    ),
    "a mixed list keeps its first item only": (
        'items = [{a = 1}, "b", ["c"]]\n',
        {"items": [{"a": 1}, "b", ["c"]]},
        {"items": [{"a": 1}]},
    ),
}


@pytest.mark.parametrize(("text", "right", "wrong"), MISREAD.values(), ids=MISREAD.keys())
def test_the_other_parser_misreads_without_an_error(text: str, right: object, wrong: object) -> None:
    assert tomllib.loads(text.removeprefix("\ufeff")) == right
    assert toml.loads(text) == wrong


CRASHES = {
    "literal paths that end in a backslash": "paths = ['C:\\a\\', 'D:\\b\\']\n",
    "certificates in the documented mixed form": 'client = ["a.pem", ["b.cert", "b.key"]]\n',
}


@pytest.mark.parametrize("text", CRASHES.values(), ids=CRASHES.keys())
def test_the_other_parser_fails_on_legal_text(text: str) -> None:
    assert tomllib.loads(text)
    with pytest.raises((ValueError, IndexError)):
        toml.loads(text)


def test_what_the_other_parser_loses_is_read_here() -> None:
    table = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata]'
    text = f'\ufeffversion = 3\nmotd = """one\ntwo""" # why\n{table}\n'
    assert "kata" in config.loads(text, host=Platform("linux", "amd64")).handlers
