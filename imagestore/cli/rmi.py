"""``imagestore rmi``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

import click

from imagestore.cli import complete, render
from imagestore.cli.app import App, output_option, pass_app
from imagestore.cli.options import handler_option
from imagestore.errors import ImageNotFoundError, ImageStoreError, InvalidInputError, UndeletableError
from imagestore.store import record_lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.store.maintenance.removal import Removals


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

    NAMES are references, image ids, beginnings of ids (four digits or more), or digests. A reference removes that name
    only, name@digest those of its repository, name:tag@digest the tag if it leads there; other names of the same image
    stay and are listed. An id, a digest alone, or --all-names removes all of them.
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
    _remove(
        app,
        names,
        runtime_handler,
        is_everywhere=all_handlers,
        frees=collect,
        output=output,
        has_all_names=all_names,
        ignores_missing=ignore_missing,
    )


def _remove(
    app: App,
    names: Sequence[str],
    handler: str | None,
    *,
    is_everywhere: bool,
    frees: bool,
    output: str,
    has_all_names: bool = False,
    ignores_missing: bool = False,
) -> None:
    """Remove images, and print what went and what stays.

    Raises:
        ImageNotFoundError: an image isn't there; the others are gone all the same.
    """
    app.is_freeing = True
    freed: int | None = None
    failure: ImageStoreError | None = None
    removed: list[tuple[str, str]] = []
    tried: list[str] = []
    is_only_name = not has_all_names
    known: dict[str, tuple[tuple[str, str], ...]] = {}
    if frees:
        for name in names:
            record_lookup.refuse_unreadable(name)
    for name in names:
        with contextlib.suppress(InvalidInputError):  # the removal says why a name is refused
            known[name] = app.store.names_of(name, runtime_handler=handler, all_handlers=is_everywhere)
    try:
        if frees:
            try:
                removals = app.store.delete_each(
                    names, runtime_handler=handler, all_handlers=is_everywhere, only_name=is_only_name
                )
            except (InvalidInputError, UndeletableError) as error:
                if error.report is None:
                    raise
                failure, removals = error, cast("Removals", error.report)
            freed = removals.bytes_freed
            tried += removals.removed
            removed += [pair for gone in removals.removed.values() for pair in gone]
        else:
            for name in dict.fromkeys(names):
                record_lookup.refuse_unreadable(name)
                removed += app.store.remove(
                    name, runtime_handler=handler, all_handlers=is_everywhere, only_name=is_only_name
                )
                tried.append(name)
    finally:
        # Also what went before a failure. What an earlier name took along isn't missing; a tag that leads to another
        # digest is.
        missing = [name for name in tried if set(known.get(name, ())).isdisjoint(removed)]
        found = {pair for name in tried if name not in missing for pair in known.get(name, ())}
        kept = sorted(found.difference(removed))
        _show_removed(removed, kept, missing, freed, output)
    if failure is not None:
        raise failure
    if missing and not ignores_missing:
        raise _missing(missing, handler)


def _show_removed(
    removed: Sequence[tuple[str, str]],
    kept: Sequence[tuple[str, str]],
    missing: Sequence[str],
    freed: int | None,
    output: str,
) -> None:
    if output == "json":
        shown = {"removed": _pairs(removed), "kept": _pairs(kept), "missing": list(missing), "bytesFreed": freed}
        render.dump_json(shown)
        return
    for reference, owner in removed:
        print(f"removed {reference} ({owner})")
    for reference, owner in kept:
        print(f"kept {reference} ({owner}), another name of the same image")
    if freed is not None:
        print(f"freed {render.size(freed)}")


def _pairs(keys: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"reference": reference, "runtimeHandler": owner} for reference, owner in keys]


def _missing(names: Sequence[str], handler: str | None) -> ImageNotFoundError:
    under = f" under runtime handler {handler!r}" if handler else ""
    listed = ", ".join(map(repr, names))
    what = f"image {listed} is" if len(names) == 1 else f"images {listed} are"
    meaning = record_lookup.untagged(names[0]) if len(names) == 1 else ""
    hint = f"{meaning}; name the tag, or use --ignore-missing" if meaning else "with --ignore-missing this is no error"
    return ImageNotFoundError(f"{what} not in the store{under}", hint=hint)
