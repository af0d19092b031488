"""What is made from the code is what the code gives now."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs._tools.__main__ import DOCS, stale
from docs._tools.cli_pages import cli_pages
from docs._tools.docstrings import rewritten
from docs._tools.man_pages import man_pages
from docs._tools.site_pages import with_links


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    # In a process of its own: other tests' classes, options and numbers would become parts of the pages.
    program = "import json, sys; from docs._tools.__main__ import made; json.dump(made(), sys.stdout)"
    done = subprocess.run([sys.executable, "-c", program], cwd=DOCS.parent, stdout=subprocess.PIPE, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_made_file_is_current(files: dict[str, str]) -> None:
    old = [name for name, text in files.items() if _text(DOCS / name) != text]
    assert (old, stale(files)) == ([], []), "run 'make reference'"


def test_there_is_a_page_and_a_man_page_for_each_command() -> None:
    pages, manual = cli_pages(), man_pages()
    assert {"reference/command-line.md", "reference/cli/pull.md"} <= set(pages)
    assert "imagestore node ensure" in pages["reference/cli/node.md"]
    assert {"imagestore.1", "imagestore-node-ensure.1"} <= set(manual)
    assert ".SH EXIT STATUS" in manual["imagestore.1"]


def test_pictures_need_nothing_of_other_servers(files: dict[str, str]) -> None:
    pictures = {name: text for name, text in files.items() if name.endswith(".svg")}
    assert len(pictures) == 4
    for text in pictures.values():
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|<script|@import|@font-face", text) == []


def test_links_of_root_files_lead_to_pages() -> None:
    text = "[a](docs/decisions/README.md) [b](CHANGELOG.md#x) [c](Makefile) [d](https://example.org) [e](#f)"
    assert with_links(text) == "[a](decisions/README.md) [b](changelog.md#x) c [d](https://example.org) [e](#f)"


def test_docstrings_become_markdown() -> None:
    text = "See :func:`imagestore.open`.\n\nArgs:\n    a, b: both\n        of them.\n    c: one.\n\n    >>> 1\n    1"
    assert rewritten(text) == (
        "See `open`.\n\nArgs:\n    a: both\n        of them.\n    b: both\n        of them.\n    c: one.\n\n"
        "```pycon\n>>> 1\n1\n```"
    )


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""
