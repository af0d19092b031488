"""``imagestore images``, ``inspecti`` and ``rmi``."""

from __future__ import annotations

import click

from imagestore.cli import actions, complete, render
from imagestore.cli.context import App, output_option, pass_app
from imagestore.cli.options import handler_option


@click.command()
@click.argument("name", required=False, shell_complete=complete.images)
@handler_option("Only images of this handler.")
@click.option("-q", "--quiet", is_flag=True, help="Only image ids, in place of the table.")
@click.option("--no-trunc", is_flag=True, help="Whole image ids.")
@output_option
@pass_app
def images(app: App, name: str | None, runtime_handler: str | None, quiet: bool, no_trunc: bool, output: str) -> None:
    """List images, one line for each (image, runtime handler).

    NAME limits the list to a reference, an image id or the beginning of one (four digits or more).
    """
    if name is not None and not name:
        raise click.UsageError("an empty name means no image")
    if app.remote is not None:
        from imagestore.cli.remote import images as remote

        remote.refuse_empty_handler(runtime_handler)
        remote.show_list(app.service, name, runtime_handler, is_quiet=quiet, has_whole_ids=no_trunc, output=output)
        return
    actions.show_images(app, name, runtime_handler, is_quiet=quiet, has_whole_ids=no_trunc, output=output)


@click.command()
@click.argument("name", shell_complete=complete.images)
@handler_option("This handler's image; by default the default handler's.")
@output_option
@pass_app
def inspecti(app: App, name: str, runtime_handler: str | None, output: str) -> None:
    """Show one image: manifest, config, platform, and its layers' files.

    NAME is a reference, an image id or the beginning of one (four digits or more), or name@digest.
    """
    if app.remote is not None:
        from imagestore.cli.remote.images import show_image

        show_image(app.service, name, runtime_handler, output=output)
        return
    from imagestore import lookup
    from imagestore.cli import describe

    lookup.refuse_unreadable(name)
    found = app.store.get(name, runtime_handler=runtime_handler)
    shown = describe.image_in_full(found, app.pins)
    if output == "json":
        render.dump_json(shown)
        return
    facts = [
        ("reference", shown["reference"]),
        ("runtime handler", shown["runtimeHandler"]),
        ("image id", shown["id"]),
        ("platform", shown["platform"]["text"]),
        ("wanted platform", shown["wantedPlatform"]),
        ("target", f"{shown['target']['digest']} ({shown['target']['mediaType']})"),
        ("manifest", f"{shown['manifest']['digest']} ({shown['manifest']['mediaType']})"),
        ("size", render.size(shown["size"])),
        ("updated", shown["updatedAt"]),
        *((name.lower(), render.shortened(value)) for name, value in (shown["config"] or {}).items() if value),
        *(("warning", warning) for warning in shown["warnings"]),
        *(("layer", f"{layer['path']} ({render.size(layer['size'])})") for layer in shown["layers"]),
    ]
    render.table(("FIELD", "VALUE"), facts)


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete.images)
@handler_option("Only this handler's records.")
@click.option("--all-handlers", is_flag=True, help="Every handler's records.")
@click.option("--all-names", is_flag=True, help="All names of the image, as by its id.")
@click.option("--ignore-missing", is_flag=True, help="An image that isn't there is no error.")
@click.option("--gc", "collect", is_flag=True, help="Free the bytes that only these images needed at once.")
@output_option
@pass_app
def rmi(
    app: App,
    names: tuple[str, ...],
    runtime_handler: str | None,
    all_handlers: bool,
    all_names: bool,
    ignore_missing: bool,
    collect: bool,
    output: str,
) -> None:
    """Remove images; 'imagestore gc' then frees their bytes.

    NAMES are references, image ids, beginnings of ids (four digits or more), or name@digest. A reference removes that
    name only; other names of the same image stay and are listed. An id, a digest, or --all-names removes all of them.
    Without --runtime-handler and --all-handlers an id means the image under every handler; a name means the default
    handler's, or the others' when the default handler doesn't have it.

    Ends with status 3 if an image isn't there. With --endpoint CRI's rules hold: an image goes with all its names, and
    one that isn't there is no error.
    """
    if runtime_handler is not None and all_handlers:
        raise click.UsageError("--runtime-handler and --all-handlers exclude each other")
    if app.remote is not None:
        from imagestore.cli.remote import images as remote

        remote.refuse_local_options({"--gc": collect})
        remote.refuse_empty_handler(runtime_handler)
        remote.remove(app.service, names, runtime_handler, is_everywhere=all_handlers, output=output)
        return
    actions.remove(
        app,
        names,
        runtime_handler,
        is_everywhere=all_handlers,
        frees=collect,
        output=output,
        has_all_names=all_names,
        ignores_missing=ignore_missing,
    )
