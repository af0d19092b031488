"""``imagestore tag``, ``untag``, ``pin`` and ``unpin``: changes of image records that keep the content."""

from __future__ import annotations

import click

from imagestore.cli import completion, describe, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import note
from imagestore.cli.options import all_of, handler_option, output_option, refuse_together
from imagestore.cli.signals import cancelled_by_signals
from imagestore.store import record_lookup


@click.command()
@click.argument("name", shell_complete=completion.images)
@click.argument("reference")
@handler_option("Only this handler's image.")
@click.option("--all-handlers", is_flag=True, help="Every handler's.")
@output_option
@pass_app
def tag(app: App, name: str, reference: str, runtime_handler: str | None, all_handlers: bool, output: str) -> None:
    """Add REFERENCE to the image NAME, under the same runtime handlers.

    NAME is understood as 'rmi' understands it. Nothing is fetched or copied, and an image that had REFERENCE before
    loses it. A pin isn't passed on.
    """
    refuse_together(runtime_handler=runtime_handler, all_handlers=all_handlers)
    record_lookup.refuse_unreadable(name)
    with cancelled_by_signals() as token:
        tagged = app.store.tag(
            name, reference, runtime_handler=runtime_handler, all_handlers=all_handlers, cancel=token
        )
    shown = {"images": [describe.image(each, app.pins) for each in tagged]}
    render.show(output, shown, (f"{each.reference} ({each.runtime_handler}): {each.id}" for each in tagged))


@click.command()
@click.argument("references", metavar="REFERENCE...", nargs=-1, required=True, shell_complete=completion.images)
@handler_option("Only from this handler's image.")
@click.option("--all-handlers", is_flag=True, help="From every handler's.")
@output_option
@pass_app
def untag(app: App, references: tuple[str, ...], runtime_handler: str | None, all_handlers: bool, output: str) -> None:
    """Remove references from images that have others too; 'rmi' removes the last one as well."""
    refuse_together(runtime_handler=runtime_handler, all_handlers=all_handlers)
    app.is_freeing = True
    removed: list[tuple[str, str]] = []
    try:
        for reference in references:
            removed += app.store.untag(reference, runtime_handler=runtime_handler, all_handlers=all_handlers)
    finally:
        # Also what was done before a reference that doesn't exist.
        if removed:
            lines = (f"untagged {reference} ({owner})" for reference, owner in removed)
            render.show(output, {"removed": describe.keys(removed)}, lines)


_pinning = all_of(
    click.argument("names", nargs=-1, required=True, shell_complete=completion.images),
    handler_option("Only this handler's records."),
    output_option,
    pass_app,
)


@click.command()
@_pinning
def pin(app: App, names: tuple[str, ...], runtime_handler: str | None, output: str) -> None:
    """Protect images from eviction by rules ('gc --keep-last' and the like); 'rmi' still removes them.

    NAMES are understood as 'rmi --all-names' understands them.
    """
    _change(app, names, runtime_handler, output, is_pinned=True)


@click.command()
@_pinning
def unpin(app: App, names: tuple[str, ...], runtime_handler: str | None, output: str) -> None:
    """Let pinned images be evicted by rules again.

    NAMES are understood as 'rmi --all-names' understands them.
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
        # Also what was done before a name that doesn't exist.
        if changed:
            images = [{**each, "pinned": is_pinned or each["reference"] in app.pins} for each in describe.keys(changed)]
            verb = "pinned" if is_pinned else "unpinned"
            render.show(output, {"images": images}, (f"{verb} {reference} ({owner})" for reference, owner in changed))
        if not is_pinned:
            for reference in {reference: None for reference, _ in changed if reference in app.pins}:
                note(f"{reference}: the configuration pins it still")
