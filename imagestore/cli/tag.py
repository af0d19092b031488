"""``imagestore tag`` and ``untag``."""

from __future__ import annotations

import click

from imagestore.cli import complete, describe, render
from imagestore.cli.app import App, output_option, pass_app
from imagestore.cli.options import handler_option
from imagestore.cli.signals import cancelled_by_signals
from imagestore.store import record_lookup


@click.command()
@click.argument("name", shell_complete=complete.images)
@click.argument("reference")
@handler_option("Only this handler's image.")
@click.option("--all-handlers", is_flag=True, help="Every handler's.")
@output_option
@pass_app
def tag(app: App, name: str, reference: str, runtime_handler: str | None, all_handlers: bool, output: str) -> None:
    """Give the image NAME a further REFERENCE, under the same runtime handlers.

    NAME is understood as 'rmi' understands it. Nothing is fetched or copied, and an image that had REFERENCE before
    loses it. A pin isn't passed on.
    """
    _check(runtime_handler, all_handlers)
    record_lookup.refuse_unreadable(name)
    with cancelled_by_signals() as token:
        tagged = app.store.tag(
            name, reference, runtime_handler=runtime_handler, all_handlers=all_handlers, cancel=token
        )
    if output == "json":
        render.dump_json({"images": [describe.image(each, app.pins) for each in tagged]})
        return
    for each in tagged:
        print(f"{each.reference} ({each.runtime_handler}): {each.id}")


@click.command()
@click.argument("references", metavar="REFERENCE...", nargs=-1, required=True, shell_complete=complete.images)
@handler_option("Only from this handler's image.")
@click.option("--all-handlers", is_flag=True, help="From every handler's.")
@output_option
@pass_app
def untag(app: App, references: tuple[str, ...], runtime_handler: str | None, all_handlers: bool, output: str) -> None:
    """Take references away from images that have others too; 'rmi' removes an image with all its references."""
    _check(runtime_handler, all_handlers)
    app.is_freeing = True
    removed: list[tuple[str, str]] = []
    try:
        for reference in references:
            removed += app.store.untag(reference, runtime_handler=runtime_handler, all_handlers=all_handlers)
    finally:
        # Also what was done before one that isn't there.
        if output != "json":
            for each, owner in removed:
                print(f"untagged {each} ({owner})")
        elif removed:
            render.dump_json({"removed": [{"reference": each, "runtimeHandler": owner} for each, owner in removed]})


def _check(runtime_handler: str | None, all_handlers: bool) -> None:
    if runtime_handler is not None and all_handlers:
        raise click.UsageError("--runtime-handler and --all-handlers exclude each other")
