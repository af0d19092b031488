"""``imagestore df``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import describe, render
from imagestore.cli.app import App, output_option, pass_app
from imagestore.errors import StoreMissingError

if TYPE_CHECKING:
    from collections.abc import Set

    from imagestore.content.api import Disk
    from imagestore.store.maintenance.usage import ImageUsage, StoreUsage


@click.command()
@output_option
@pass_app
def df(app: App, output: str) -> None:
    """Show how much space each image takes: in all, alone (freed when it goes), and shared with others."""
    usage = _usage(app)
    if output == "json":
        render.dump_json({"images": [image_as_json(each, app.pins) for each in usage.images], **sizes_as_json(usage)})
        return
    headings = ("IMAGE", "TAG", "RUNTIME HANDLER", "SIZE", "UNIQUE", "SHARED", "LAST USED", "PINNED")
    render.table(headings, (_row(each, app.pins) for each in usage.images))
    print()
    rows = [
        ("content of images", render.size(usage.kept_bytes)),
        ("content of no image", render.size(usage.other_bytes)),
        (f"unfinished ({usage.ingests})", render.size(usage.ingest_bytes)),
        ("records", render.size(usage.metadata_bytes)),
        ("disk free", _free(usage.disk)),
    ]
    render.table(("WHAT", "BYTES"), rows)


def _free(disk: Disk) -> str:
    return f"{render.size(disk.free_bytes)} of {render.size(disk.total_bytes)}" if disk.total_bytes else "not counted"


def _usage(app: App) -> StoreUsage:
    app.missing = "refuse"
    try:
        return app.store.usage()
    except StoreMissingError:
        if app.given_root is not None:
            raise
        from imagestore.store.maintenance.usage import nothing

        return nothing(app.root)


def _row(usage: ImageUsage, pins: Set[str]) -> tuple[str, ...]:
    from imagestore.store.maintenance.eviction import last_use

    record = usage.record
    sizes = (render.size(each) for each in (usage.size, usage.unique_bytes, usage.shared_bytes))
    used = f"{describe.time(last_use(record))[:16]}Z"
    pinned = "yes" if record.is_pinned else "config" if record.reference in pins else ""
    return (*describe.familiar(record.reference), record.handler, *sizes, used, pinned)


def image_as_json(usage: ImageUsage, pins: Set[str]) -> dict[str, Any]:
    """What one image takes; ``pins`` are the references that the configuration pins."""
    from imagestore.store.maintenance.eviction import last_use

    record = usage.record
    return {
        "reference": record.reference,
        "runtimeHandler": record.handler,
        "id": str(record.image_id),
        "bytes": usage.size,
        "uniqueBytes": usage.unique_bytes,
        "sharedBytes": usage.shared_bytes,
        "lastUsedAt": describe.time(last_use(record)),
        "pinned": record.is_pinned or record.reference in pins,
    }


def sizes_as_json(usage: StoreUsage) -> dict[str, int]:
    """What the whole store takes, and what its disk has."""
    return {
        "blobs": usage.blobs,
        "contentBytes": usage.content_bytes,
        "keptBytes": usage.kept_bytes,
        "otherBytes": usage.other_bytes,
        "ingests": usage.ingests,
        "ingestBytes": usage.ingest_bytes,
        "metadataBytes": usage.metadata_bytes,
        "diskBytes": usage.disk.total_bytes,
        "diskFreeBytes": usage.disk.free_bytes,
    }
