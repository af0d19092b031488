"""The pages of the documentation site and their fenced blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from docs._tools.site_pages import PAGES as ROOT_PAGES

TOP: Final = Path(__file__).parents[3]
DOCS: Final = TOP / "docs"
#: A page with this comment has examples that need servers: tests/integration/test_docs.py runs them.
NEEDS_SERVERS: Final = "<!-- examples need: postgresql, bucket -->"
#: What isn't written as a page of the site: files of the root, the record of decisions, and tools.
NOT_TASKS: Final = (*ROOT_PAGES, "decisions", "_tools")

_FENCE: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: what stands behind the fence.
        title: the file that the block is, or "".
        text: its lines, without indentation.
        indent: what stands before each of its lines in the page.
        start, end: where the text is in the page.
        line: the fence's line.
    """

    language: str
    title: str
    text: str
    indent: str
    start: int
    end: int
    line: int


def pages() -> list[Path]:
    """Every page that people wrote, README.md included."""
    made = (DOCS / "reference" / "command-line.md", *(DOCS / "reference" / "cli").glob("*.md"))
    found = [path for path in sorted(DOCS.rglob("*.md")) if path.relative_to(DOCS).parts[0] not in NOT_TASKS]
    found = [path for path in found if path not in made]
    return [TOP / "README.md", *found]


def in_order_of_site(found: list[Path]) -> list[Path]:
    """Sorts pages as mkdocs.yml lists them."""
    listed = re.findall(r"(\S+\.md)$", (TOP / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    return sorted(found, key=lambda page: listed.index(page.relative_to(DOCS).as_posix()))


def needs_servers(page: Path) -> bool:
    """Whether a page's examples need a database server and a bucket."""
    return NEEDS_SERVERS in page.read_text("utf-8")


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = []
    for match in _FENCE.finditer(text):
        indent = match["indent"]
        lines = [line.removeprefix(indent) for line in match["text"].splitlines(keepends=True)]
        line = text.count("\n", 0, match.start()) + 1
        found.append(
            Block(
                language=match["language"],
                title=match["title"] or "",
                text="".join(lines),
                indent=indent,
                start=match.start("text"),
                end=match.end("text"),
                line=line,
            )
        )
    return found


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that the page shows."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].rstrip("\n"), ""))
        elif found and found[-1][0].endswith("\\"):
            command, _ = found.pop()
            found.append((f"{command[:-1]}{line.strip()}", ""))
        elif found:
            command, output = found.pop()
            found.append((command, output + line))
    return found
