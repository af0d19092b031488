"""Writes what is made and committed of the documentation: ``python -m docs._tools``, which ``make reference`` runs.

JSON Schemas, tables of exit statuses and metrics, pictures of real output. Pages of the command line are made with
the site (``site_pages``), man pages with the wheel (``man_pages``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from docs._tools.pictures import pictures
from docs._tools.schemas import schema_files
from docs._tools.tables import PAGES, with_tables

DOCS: Final = Path(__file__).parents[1]
#: Folders in which everything is made.
FOLDERS: Final = ("schemas",)


def made() -> dict[str, str]:
    """Every file that is made, or has a part that is: path below ``docs/`` to text."""
    tables = {page: with_tables((DOCS / page).read_text("utf-8")) for page in PAGES}
    return {**pictures(), **schema_files(), **tables}


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
