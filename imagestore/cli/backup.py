"""``imagestore backup``."""

from __future__ import annotations

from pathlib import Path

import click

from imagestore.cli import render
from imagestore.cli.app import App, GivenPath, output_option, pass_app


@click.command()
@click.argument("file", type=GivenPath(dir_okay=False, path_type=Path))
@output_option
@pass_app
def backup(app: App, file: Path, output: str) -> None:
    """Copy the records (not the content) to a new FILE while other processes go on reading and writing.

    To restore, stop what uses the store, put FILE in the place of metadata.db below --root, remove metadata.db-wal,
    metadata.db-shm and records.jsonl there, then run 'imagestore check'.
    """
    app.missing = "refuse"
    app.store.backup(file)
    size = file.stat().st_size
    if output == "json":
        render.dump_json({"file": str(file), "bytes": size})
        return
    print(f"{render.printable(str(file))}: {render.size(size)}")
