"""``imagestore gc``."""

from __future__ import annotations

import click

from imagestore.cli import render
from imagestore.cli.context import App, output_option, pass_app


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be freed.")
@output_option
@pass_app
def gc(app: App, dry_run: bool, output: str) -> None:
    """Free the content that no image and no lease needs. Safe while other processes pull."""
    report = app.store.collect_garbage(dry_run=dry_run)
    if output == "json":
        render.dump_json(
            {
                "dryRun": report.dry_run,
                "blobs": [str(digest) for digest in report.digests],
                "ingests": list(report.ingests),
                "bytesFreed": report.bytes_freed,
                "keptBlobs": report.kept_blobs,
                "keptBytes": report.kept_bytes,
            }
        )
        return
    for digest in report.digests:
        print(f"{'would free' if dry_run else 'freed'} {digest}")
    for ref in report.ingests:
        print(f"{'would drop' if dry_run else 'dropped'} stale ingest {render.printable(ref)}")
    verb = "would be freed" if dry_run else "freed"
    print(
        f"{render.size(report.bytes_freed)} in {len(report.digests)} blobs {verb};"
        f" {render.size(report.kept_bytes)} in {report.kept_blobs} blobs kept"
    )
