"""``imagestore rmi``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import click

from imagestore.cli import completion, describe, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.options import handler_option, output_option, refuse_together
from imagestore.errors import (
    ImageNotFoundError,
    ImageStoreError,
    InvalidInputError,
    InvalidReferenceError,
    PreconditionError,
    UndeletableError,
)
from imagestore.store import record_lookup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.store.maintenance.removal import Removal

#: Reference and runtime handler.
Key: TypeAlias = tuple[str, str]


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=completion.images)
@handler_option("Only this handler's records.")
@click.option("--all-handlers", is_flag=True, help="Every handler's records.")
@click.option("--all-names", is_flag=True, help="All names of the image, as by its id.")
@click.option("--ignore-missing", is_flag=True, help="An image that isn't there is no error.")
@click.option("--dry-run", "-n", is_flag=True, help="Only show what would be removed.")
@click.option("--force", "-f", is_flag=True, help="Remove pinned images too.")
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
    dry_run: bool,
    force: bool,
    collect: bool,
    output: str,
) -> None:
    """Remove images; 'imagestore gc' then frees their bytes.

    NAMES are references, image ids, beginnings of ids (four digits or more), or digests. A reference removes that name
    only, name@digest those of its repository, name:tag@digest the tag if it leads there; other names of the same image
    stay and are listed. An id, a digest alone, or --all-names removes all of them.
    Without --runtime-handler and --all-handlers an id means the image under every handler; a name means the default
    handler's, or the others' when the default handler doesn't have it.

    Nothing is removed when one of the images is pinned, unless --force is given. Ends with status 3 if an image isn't
    there. With --endpoint CRI's rules hold: an image goes with all its names, and one that isn't there is no error.
    """
    refuse_together(runtime_handler=runtime_handler, all_handlers=all_handlers)
    if app.remote is not None:
        from imagestore.cli import remote

        remote.refuse_local_options({"--gc": collect, "--dry-run": dry_run, "--force": force})
        remote.refuse_empty_handler(runtime_handler)
        remote.remove(app.service, names, runtime_handler, is_everywhere=all_handlers, output=output)
        return
    work = _Removal(app, names, all_names=all_names, runtime_handler=runtime_handler, all_handlers=all_handlers)
    if not force:
        work.refuse_pinned()
    if dry_run:
        work.plan(output)
    else:
        work.run(frees=collect, output=output)
    if work.missing and not ignore_missing:
        raise _missing(work.missing, runtime_handler)


class _Removal:
    """The records that the names of one command mean, and their removal.

    Args:
        app: the global options.
        names: as given.
        all_names: a name means the other names of its image too.
        choice: ``runtime_handler`` and ``all_handlers`` for the store's calls.
    """

    def __init__(self, app: App, names: Sequence[str], *, all_names: bool, **choice: Any) -> None:
        self._app = app
        self._names = tuple(dict.fromkeys(names))
        self._all_names = all_names
        self._choice = choice
        app.is_freeing = True
        self._known: dict[str, tuple[Key, ...]] = {}
        for name in self._names:
            with contextlib.suppress(InvalidInputError):  # the removal says why a name is refused
                self._known[name] = app.store.remove(name, all_names=True, dry_run=True, **choice).removed
        #: Names that mean nothing; known when the work is done.
        self.missing: list[str] = []

    def _to_remove(self) -> list[Key]:
        removal = self._app.store.remove(*self._known, all_names=self._all_names, dry_run=True, **self._choice)
        return list(removal.removed)

    def refuse_pinned(self) -> None:
        """Refuse the removal if one of the images is pinned.

        Raises:
            PreconditionError: one is.
        """
        keys, pins = self._to_remove(), self._app.pins
        records = self._app.store.metadata.images.get_many(keys)
        pinned = [key for key in keys if key[0] in pins or (key in records and records[key].is_pinned)]
        if pinned:
            shown = ", ".join(f"{reference} ({owner})" for reference, owner in pinned)
            raise PreconditionError(
                f"pinned, so nothing was removed: {shown}", hint="'imagestore unpin' it first, or use --force"
            )

    def plan(self, output: str) -> None:
        """Print what a removal would do."""
        for name in self._names:
            record_lookup.refuse_unreadable(name)
        self._show(self._names, self._to_remove(), None, output, is_planned=True)

    def run(self, *, frees: bool, output: str) -> None:
        """Remove images, and print what went and what stays, also before a failure."""
        failure: ImageStoreError | None = None
        names: list[str] = []
        try:
            for name in self._names:
                record_lookup.refuse_unreadable(name)
                names.append(name)
        except InvalidReferenceError as error:
            if frees:
                raise
            failure = error  # those before it are removed
        try:
            removal = self._app.store.remove(*names, all_names=self._all_names, collect=frees, **self._choice)
        except (InvalidInputError, UndeletableError) as error:
            if error.report is None:
                raise
            failure, removal = error, cast("Removal", error.report)
        self._show(list(removal.by_name), removal.removed, removal.bytes_freed if frees else None, output)
        if failure is not None:
            raise failure

    def _show(
        self, tried: Sequence[str], removed: Sequence[Key], freed: int | None, output: str, *, is_planned: bool = False
    ) -> None:
        # A name whose records an earlier name removed isn't missing; a tag that leads to another digest is.
        self.missing = [name for name in tried if set(self._known.get(name, ())).isdisjoint(removed)]
        found = {key for name in tried if name not in self.missing for key in self._known.get(name, ())}
        kept = sorted(found.difference(removed))
        did, does = ("would remove", "would keep") if is_planned else ("removed", "kept")
        lines = [f"{did} {reference} ({owner})" for reference, owner in removed]
        lines += [f"{does} {reference} ({owner}), another name of the same image" for reference, owner in kept]
        if freed is not None:
            lines.append(f"freed {render.size(freed)}")
        shown = {"removed": describe.keys(removed), "kept": describe.keys(kept), "missing": self.missing}
        render.show(output, {**shown, "bytesFreed": freed, "dryRun": is_planned}, lines)


def _missing(names: Sequence[str], handler: str | None) -> ImageNotFoundError:
    under = f" under runtime handler {handler!r}" if handler else ""
    listed = ", ".join(map(repr, names))
    what = f"image {listed} is" if len(names) == 1 else f"images {listed} are"
    meaning = record_lookup.untagged(names[0]) if len(names) == 1 else ""
    hint = f"{meaning}; name the tag, or use --ignore-missing" if meaning else "with --ignore-missing this is no error"
    return ImageNotFoundError(f"{what} not in the store{under}", hint=hint)
