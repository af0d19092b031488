"""Pages that aren't committed: ``python -m docs._tools.site_pages``, which ``make docs`` runs first.

Those of the command line, and files of the repository's root.

They are written next to the others and not committed. (A hook of mkdocs could add them; zensical, the successor of
mkdocs-material, has none.)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from docs._tools.cli_pages import cli_pages

TOP: Final = Path(__file__).parents[2]
#: Page to file.
PAGES: Final = {
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
_LINK: Final = re.compile(r"\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def with_links(text: str) -> str:
    """A root file's text whose links lead to pages of the site; what isn't there is named without a link."""
    pages = {name: page for page, name in PAGES.items()}

    def replaced(match: re.Match[str]) -> str:
        text, path, anchor = match["text"], match["path"], match["anchor"] or ""
        inside = pages.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        return f"[{text}]({inside}{anchor})" if inside else text

    return _LINK.sub(replaced, text)


def main() -> None:
    """Write the pages."""
    pages = {page: with_links((TOP / name).read_text("utf-8")) for page, name in PAGES.items()}
    for page, text in {**pages, **cli_pages()}.items():
        path = TOP / "docs" / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
