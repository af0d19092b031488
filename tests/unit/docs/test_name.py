"""What someone types or follows as it stands: this project's name on an index, and its addresses."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

from imagestore.util.distribution import DISTRIBUTION, install_hint

TOP: Final = Path(__file__).parents[3]
#: What a distribution has, and what tells how it is installed.
FOLDERS: Final = ("imagestore", "docs", "examples", "benchmarks", "fixtures", "packaging", ".ci")
KINDS: Final = frozenset({".md", ".py", ".toml", ".yml", ".service", ".conf", ".1", ".json", ".example", ".in", ""})
TEXTS: Final = [
    path
    for place in (*(TOP / each for each in FOLDERS), *TOP.glob("*"))
    for path in ([place] if place.is_file() else place.rglob("*") if place.name in FOLDERS else ())
    if path.is_file() and path.suffix in KINDS and "__pycache__" not in path.parts and not path.name.startswith(".")
]
#: Another project's name on the index, where a command or a requirement has it.
FOREIGN_NAME: Final = re.compile(
    r"\b(?:pip3?|pipx|uv|uvx|poetry|conda|pdm)\b[^\n]*\b(?:install|add|run|download|index versions)\b[^\n`]*?"
    r"(?<![\w./-])imagestore(?![\w./-])"
    r"|(?<![\w.-])imagestore(?:\[[a-z]+[\],]|\s*(?:[=~!]=|>=)\s*\d)",
)
#: This project has no site, no repository and no package index page yet.
OWN_ADDRESS: Final = re.compile(r"https?://[^\s)\"'<>`]*imagestore", re.IGNORECASE)


def found(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(TOP)}: {match[0]}"
        for path in TEXTS
        for match in pattern.finditer(path.read_text("utf-8", "replace"))
    ]


@pytest.mark.parametrize(
    "line",
    [
        "pip install imagestore",
        "pip install 'imagestore[cli]'",
        "python3 -m pip install --upgrade imagestore",
        "uv tool install imagestore",
        "imagestore[testing]>=0.2",
        'dependencies = ["imagestore>=0.1"]',
    ],
)
def test_lines_that_bring_another_project_are_known(line: str) -> None:
    assert FOREIGN_NAME.search(line)
    assert not FOREIGN_NAME.search(line.replace("imagestore", DISTRIBUTION))


def test_no_line_brings_another_project() -> None:
    assert len(TEXTS) > 1000
    assert found(FOREIGN_NAME) == []
    assert install_hint("cli") == f"pip install '{DISTRIBUTION}[cli]'"


def test_no_text_has_an_absolute_link_to_this_project() -> None:
    assert OWN_ADDRESS.search("[Docs](https://imagestore.readthedocs.io/)")
    assert OWN_ADDRESS.search("https://git.example/someone/imagestore/blob/main/README.md")
    assert found(OWN_ADDRESS) == []


def test_the_metadata_has_the_name_and_no_address() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert "urls" not in project
