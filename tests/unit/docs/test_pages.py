"""The examples of the documentation run as they stand, and the pages keep their rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.docs.pages import TOP, blocks, pages
from tests.unit.docs.session import Session

PAGES = pages()
NAMES = [str(path.relative_to(TOP)) for path in PAGES]


def node_of(text: str) -> str:
    """The platform of the node that a page plays, from its comment ``<!-- node: ... -->``."""
    found = re.search(r"<!-- node: (\S+) -->", text)
    return found[1] if found else "linux/amd64"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text("utf-8")
    with Session(tmp_path, monkeypatch, node_of(text)) as session:
        for block in blocks(text):
            session.run(block)
