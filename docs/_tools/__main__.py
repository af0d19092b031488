"""Writes the parts of the documentation that are made: ``python -m docs._tools``, which ``make reference`` runs.

Pages of the command line, man pages, JSON Schemas, tables of exit statuses and metrics, pictures of real output.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from docs._tools.cli_pages import cli_pages
from docs._tools.man_pages import man_pages
from docs._tools.pictures import pictures
from docs._tools.schemas import schema_files
from docs._tools.tables import PAGES, with_tables

DOCS: Final = Path(__file__).parents[1]
#: Folders in which everything is made.
FOLDERS: Final = ("man", "reference/cli", "schemas")


def made() -> dict[str, str]:
    """Every file that is made, or has a part that is: path below ``docs/`` to text."""
    tables = {page: with_tables((DOCS / page).read_text("utf-8")) for page in PAGES}
    return {**cli_pages(), **man_pages(), **pictures(), **schema_files(), **tables}


def stale(files: dict[str, str]) -> list[Path]:
    """Files that commands no longer have."""
    there = [path for folder in FOLDERS for path in (DOCS / folder).glob("*") if path.is_file()]
    return [path for path in there if path.relative_to(DOCS).as_posix() not in files]


def main() -> int:
    """Write what changed; returns the exit status."""
    files = made()
    for path in stale(files):
        path.unlink()
    for name, text in files.items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
