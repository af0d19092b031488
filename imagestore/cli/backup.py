"""``imagestore backup`` and ``imagestore restore``."""

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

    'imagestore restore FILE' puts them back.
    """
    app.missing = "refuse"
    app.store.backup(file)
    size = file.stat().st_size
    if output == "json":
        render.dump_json({"file": str(file), "bytes": size})
        return
    print(f"{render.printable(str(file))}: {render.size(size)}")


@click.command()
@click.argument("file", type=GivenPath(dir_okay=False, path_type=Path))
@output_option
@pass_app
def restore(app: App, file: Path, output: str) -> None:
    """Put the records of a backup FILE in the place of the store's, which are kept under another name.

    Stop what uses the store before. The content stays: 'imagestore check' then says what of the backup's images is
    missing, 'imagestore repair' fetches it, and 'imagestore gc' frees what no image of the backup needs.
    """
    app.refuse_shared("restore", "use pg_restore, or the base backup and its write-ahead log")
    from imagestore.store.maintenance.rebuild import restore_backup

    kept_as = restore_backup(app.root, file)
    if output == "json":
        render.dump_json({"restored": str(file), "keptAs": None if kept_as is None else str(kept_as)})
        return
    print(f"{render.printable(str(file))} restored; run 'imagestore check' before anything uses the store")
    if kept_as is not None:
        print(f"the records that were there: {render.printable(str(kept_as))}")
