"""Writes what commands print into the pages: ``python -m tests.unit.docs.write [PAGE ...]``.

Output that a page shows, and that still fits, stays as it is, with the ``...`` in it.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Final

import pytest

from tests.unit.docs.pages import blocks, commands, needs_servers, pages
from tests.unit.docs.session import Session, is_same
from tests.unit.docs.test_pages import node_of

#: What is another at each run: times, and what the disk and the database take.
_VARIES: Final = re.compile(r"20\d\d-\d\d-\d\dT[\d:.]+Z|(?<=^disk free )[ \S]*|(?<=^records )[ \S]*", re.MULTILINE)


def write(page: Path) -> bool:
    """Run a page's examples and write their output; returns whether it changed."""
    text = page.read_text("utf-8")
    parts, after = [], 0
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        Session(Path(folder), patch, node_of(text)) as session,
    ):
        for block in blocks(text):
            if block.language != "console":
                session.run(block)
                continue
            lines = "".join(_written(session, *each) for each in commands(block))
            parts += [text[after : block.start], textwrap.indent(lines, block.indent)]
            after = block.end
    new = "".join(parts) + text[after:]
    page.write_text(new, "utf-8")
    return new != text


def _written(session: Session, command: str, expected: str) -> str:
    found = session.output(command)
    return f"$ {command}\n" + (expected if is_same(expected, found) else _VARIES.sub("...", found))


if __name__ == "__main__":
    for chosen in [Path(word).resolve() for word in sys.argv[1:]] or [
        page for page in pages() if not needs_servers(page)
    ]:
        if write(chosen):
            print(chosen)
