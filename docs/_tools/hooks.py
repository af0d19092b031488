"""What mkdocs does besides: pages that are files of the repository's root."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

TOP: Final = Path(__file__).parents[2]
SOURCE: Final = "https://github.com/imagestore/imagestore/blob/main/"
#: Page to file.
PAGES: Final = {
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
_LINK: Final = re.compile(r"\]\((?!https?:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for page, name in PAGES.items():
        files.append(File.generated(config, page, content=with_links((TOP / name).read_text("utf-8"))))
    return files


def with_links(text: str) -> str:
    """A root file's text whose links lead to pages of the site, or else to the repository."""
    pages = {name: page for page, name in PAGES.items()}

    def replaced(match: re.Match[str]) -> str:
        path, anchor = match["path"], match["anchor"] or ""
        inside = pages.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        return f"]({inside or SOURCE + path}{anchor})"

    return _LINK.sub(replaced, text)
