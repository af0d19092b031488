"""``imagestore pin`` and ``unpin``."""

from __future__ import annotations

import click

from imagestore.cli import complete, render
from imagestore.cli.app import App, output_option, pass_app
from imagestore.cli.exit_codes import say
from imagestore.cli.options import handler_option
from imagestore.store import record_lookup


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete.images)
@handler_option("Only this handler's records.")
@output_option
@pass_app
def pin(app: App, names: tuple[str, ...], runtime_handler: str | None, output: str) -> None:
    """Spare images from eviction by rules ('gc --keep-last' and the like); 'rmi' still removes them.

    NAMES are understood as 'rmi' understands them.
    """
    _change(app, names, runtime_handler, output, is_pinned=True)


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete.images)
@handler_option("Only this handler's records.")
@output_option
@pass_app
def unpin(app: App, names: tuple[str, ...], runtime_handler: str | None, output: str) -> None:
    """Let pinned images be evicted by rules again.

    NAMES are understood as 'rmi' understands them.
    """
    _change(app, names, runtime_handler, output, is_pinned=False)


def _change(app: App, names: tuple[str, ...], handler: str | None, output: str, *, is_pinned: bool) -> None:
    change = app.store.pin if is_pinned else app.store.unpin
    changed: list[tuple[str, str]] = []
    try:
        for name in names:
            record_lookup.refuse_unreadable(name)
            changed += change(name, runtime_handler=handler)
    finally:
        # Also what was done before a name that isn't there.
        if output != "json":
            for reference, owner in changed:
                print(f"{'pinned' if is_pinned else 'unpinned'} {reference} ({owner})")
        elif changed:
            render.dump_json({"images": [_image(app, *key, is_pinned=is_pinned) for key in changed]})
        if not is_pinned:
            for reference in {reference: None for reference, _ in changed if reference in app.pins}:
                say(f"imagestore: {render.printable(reference)}: the configuration pins it still")


def _image(app: App, reference: str, handler: str, *, is_pinned: bool) -> dict[str, object]:
    return {"reference": reference, "runtimeHandler": handler, "pinned": is_pinned or reference in app.pins}
