"""``imagestore rmi``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeAlias, cast

import click

from imagestore.cli import complete, render
from imagestore.cli.app import App, output_option, pass_app
from imagestore.cli.options import handler_option
from imagestore.errors import (
    ImageNotFoundError,
    ImageStoreError,
    InvalidInputError,
    PreconditionError,
    UndeletableError,
)
from imagestore.store import record_lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.store.maintenance.removal import Removals

#: Reference and runtime handler.
Key: TypeAlias = tuple[str, str]


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete.images)
@handler_option("Only this handler's records.")
@click.option("--all-handlers", is_flag=True, help="Every handler's records.")
@click.option("--all-names", is_flag=True, help="All names of the image, as by its id.")
@click.option("--ignore-missing", is_flag=True, help="An image that isn't there is no error.")
@click.option("--dry-run", "-n", is_flag=True, help="Only say what would be removed.")
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
    if runtime_handler is not None and all_handlers:
        raise click.UsageError("--runtime-handler and --all-handlers exclude each other")
    if app.remote is not None:
        from imagestore.cli.remote import images as remote

        remote.refuse_local_options({"--gc": collect, "--dry-run": dry_run, "--force": force})
        remote.refuse_empty_handler(runtime_handler)
        remote.remove(app.service, names, runtime_handler, is_everywhere=all_handlers, output=output)
        return
    work = _Removal(app, names, runtime_handler, is_everywhere=all_handlers, has_all_names=all_names)
    if not force:
        work.refuse_pinned()
    if dry_run:
        work.plan(output)
    else:
        work.run(frees=collect, output=output)
    if work.missing and not ignore_missing:
        raise _missing(work.missing, runtime_handler)


class _Removal:
    """What the names of one command mean, and what became of it.

    Args:
        app: has the store.
        names: as given.
        handler: only this handler's records, or None.
        is_everywhere: every handler's records, by name too.
        has_all_names: a name means all names of its image.
    """

    def __init__(
        self, app: App, names: Sequence[str], handler: str | None, *, is_everywhere: bool, has_all_names: bool
    ) -> None:
        self._app = app
        self._names = tuple(dict.fromkeys(names))
        self._handler = handler
        self._is_everywhere = is_everywhere
        self._is_only_name = not has_all_names
        app.is_freeing = True
        self._known: dict[str, tuple[Key, ...]] = {}
        for name in self._names:
            with contextlib.suppress(InvalidInputError):  # the removal says why a name is refused
                self._known[name] = self._meant(name, only_name=False)
        #: Names that mean nothing; known when the work is done.
        self.missing: list[str] = []

    def _meant(self, name: str, *, only_name: bool) -> tuple[Key, ...]:
        return self._app.store.names_of(
            name, runtime_handler=self._handler, all_handlers=self._is_everywhere, only_name=only_name
        )

    def _to_remove(self) -> list[Key]:
        found: dict[Key, None] = {}
        for name in self._names:
            if name in self._known:
                found |= dict.fromkeys(self._meant(name, only_name=self._is_only_name))
        return list(found)

    def refuse_pinned(self) -> None:
        """Refuse the whole work when one of the images is pinned.

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
        if frees:
            self._run_at_once(output)
            return
        removed: list[Key] = []
        tried: list[str] = []
        try:
            for name in self._names:
                record_lookup.refuse_unreadable(name)
                removed += self._app.store.remove(
                    name,
                    runtime_handler=self._handler,
                    all_handlers=self._is_everywhere,
                    only_name=self._is_only_name,
                )
                tried.append(name)
        finally:
            self._show(tried, removed, None, output)

    def _run_at_once(self, output: str) -> None:
        for name in self._names:
            record_lookup.refuse_unreadable(name)
        failure: ImageStoreError | None = None
        try:
            removals = self._app.store.delete_each(
                self._names,
                runtime_handler=self._handler,
                all_handlers=self._is_everywhere,
                only_name=self._is_only_name,
            )
        except (InvalidInputError, UndeletableError) as error:
            if error.report is None:
                raise
            failure, removals = error, cast("Removals", error.report)
        removed = [key for gone in removals.removed.values() for key in gone]
        self._show(list(removals.removed), removed, removals.bytes_freed, output)
        if failure is not None:
            raise failure

    def _show(
        self, tried: Sequence[str], removed: Sequence[Key], freed: int | None, output: str, *, is_planned: bool = False
    ) -> None:
        # What an earlier name took along isn't missing; a tag that leads to another digest is.
        self.missing = [name for name in tried if set(self._known.get(name, ())).isdisjoint(removed)]
        found = {key for name in tried if name not in self.missing for key in self._known.get(name, ())}
        kept = sorted(found.difference(removed))
        if output == "json":
            shown = {
                "removed": _pairs(removed),
                "kept": _pairs(kept),
                "missing": self.missing,
                "bytesFreed": freed,
                "dryRun": is_planned,
            }
            render.dump_json(shown)
            return
        for reference, owner in removed:
            print(f"{'would remove' if is_planned else 'removed'} {reference} ({owner})")
        for reference, owner in kept:
            print(f"{'would keep' if is_planned else 'kept'} {reference} ({owner}), another name of the same image")
        if freed is not None:
            print(f"freed {render.size(freed)}")


def _pairs(keys: Iterable[Key]) -> list[dict[str, str]]:
    return [{"reference": reference, "runtimeHandler": owner} for reference, owner in keys]


def _missing(names: Sequence[str], handler: str | None) -> ImageNotFoundError:
    under = f" under runtime handler {handler!r}" if handler else ""
    listed = ", ".join(map(repr, names))
    what = f"image {listed} is" if len(names) == 1 else f"images {listed} are"
    meaning = record_lookup.untagged(names[0]) if len(names) == 1 else ""
    hint = f"{meaning}; name the tag, or use --ignore-missing" if meaning else "with --ignore-missing this is no error"
    return ImageNotFoundError(f"{what} not in the store{under}", hint=hint)
