"""The commands most used, on a local store: what they do once it is clear what is wanted."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, cast

from imagestore.cli import render
from imagestore.cli.failure import say_untried
from imagestore.cli.signals import cancelled_by_signals
from imagestore.errors import ImageNotFoundError, ImageStoreError, InvalidInputError, UndeletableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from imagestore.cli.app import App
    from imagestore.image import Image
    from imagestore.metadata.summaries import ImageSummary
    from imagestore.platforms import Platform
    from imagestore.upkeep.removal import Removals


def pull(
    app: App,
    work: Sequence[tuple[str, str]],
    *,
    platform: str | None,
    deadline_seconds: float | None,
    progress: str,
    output: str,
) -> None:
    """Pull images and say what came.

    Args:
        app: has the store.
        work: pairs of reference and runtime handler.
        platform: instead of the handlers'.
        deadline_seconds: for all of it.
        progress: style, see progress.observer().
        output: ``table`` or ``json``.
    """
    from imagestore.cli import progress as shown
    from imagestore.reference import Reference

    app.missing = "make"
    for reference, _ in work:
        Reference.parse(reference)
    pulled: list[Image] = []
    try:
        with cancelled_by_signals(deadline_seconds=deadline_seconds) as token, shown.observer(progress) as observer:
            for reference, handler in work:
                image = app.store.pull(
                    reference, runtime_handler=handler, platform=platform, observer=observer, cancel=token
                )
                pulled.append(image)
    except ImageStoreError:
        say_untried(work[len(pulled) + 1 :])
        raise
    finally:
        # Also what came before a failure; but not while bars are drawn, which would take the lines for theirs.
        if output != "json":
            for image in pulled:
                print(f"{image.reference} ({image.runtime_handler}): {image.id}")
        elif pulled:
            from imagestore.cli import describe

            render.dump_json({"images": [describe.image(image, app.pins) for image in pulled]})


def show_images(
    app: App, name: str | None, handler: str | None, *, is_quiet: bool, has_whole_ids: bool, output: str
) -> None:
    """List images.

    Args:
        app: has the store.
        name: reference, image id or the beginning of one; None for all.
        handler: only this runtime handler's.
        is_quiet: only ids, in place of the table.
        has_whole_ids: in the table.
        output: ``table`` or ``json``.
    """
    if name is not None:
        _refuse_unreadable(name)
    if output == "json":
        from imagestore.cli import describe

        shown = app.store.list(name=name, runtime_handler=handler)
        render.dump_json({"images": [describe.image(each, app.pins) for each in shown]})
        return
    found = _summaries(app, name, handler)
    if is_quiet:
        print("".join([f"{each.image_id}\n" for each in found]), end="")
        return
    headings = ("IMAGE", "TAG", "RUNTIME HANDLER", "PLATFORM", "IMAGE ID", "SIZE")
    render.table(headings, _rows(found, has_whole_ids=has_whole_ids))


def _summaries(app: App, name: str | None, handler: str | None) -> list[ImageSummary]:
    """What the table shows; without conditions straight from the database: no store, no configuration."""
    from imagestore.metadata.summaries import ImageSummary, read_summaries

    if name is None and handler is None:
        if app.given_config is not None and not os.access(app.given_config, os.R_OK):
            _ = app.config  # says why
        found = read_summaries(app.root / "metadata.db")
        if found is not None:
            return found
    return [
        ImageSummary(each.reference, each.runtime_handler, str(each.id), each.platform, each.size)
        for each in app.store.list(name=name, runtime_handler=handler)
    ]


def remove(
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
    """Remove images.

    Args:
        app: has the store.
        names: references, image ids or beginnings of ids.
        handler: only this runtime handler's records.
        is_everywhere: every handler's.
        frees: also the bytes that only they needed.
        output: ``table`` or ``json``.
        has_all_names: by a reference too, all references of the image; as by an id.
        ignores_missing: what isn't there is no error.

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
        _refuse_unreadable(*names)
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
                _refuse_unreadable(name)
                removed += app.store.remove(
                    name, runtime_handler=handler, all_handlers=is_everywhere, only_name=is_only_name
                )
                tried.append(name)
    finally:
        # Also what went before a failure. What an earlier name took along isn't missing.
        missing = [name for name in tried if not known.get(name)]
        kept = sorted({pair for name in tried for pair in known.get(name, ())}.difference(removed))
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
    from imagestore import lookup

    under = f" under runtime handler {handler!r}" if handler else ""
    listed = ", ".join(map(repr, names))
    what = f"image {listed} is" if len(names) == 1 else f"images {listed} are"
    meaning = lookup.untagged(names[0]) if len(names) == 1 else ""
    hint = f"{meaning}; name the tag, or use --ignore-missing" if meaning else "with --ignore-missing this is no error"
    return ImageNotFoundError(f"{what} not in the store{under}", hint=hint)


def _refuse_unreadable(*names: str) -> None:
    from imagestore import lookup  # a list of everything does without

    for name in names:
        lookup.refuse_unreadable(name)


def _rows(images: Iterable[ImageSummary], *, has_whole_ids: bool) -> Iterator[tuple[str, ...]]:
    from imagestore.cli.names import familiar
    from imagestore.platforms import format_all

    # A list has thousands of lines and few platforms.
    platforms: dict[Platform, str] = {}
    for image in images:
        name, tag = familiar(image.reference)
        shown = image.image_id if has_whole_ids else image.image_id.partition(":")[2][:12]
        platform = platforms.get(image.platform) or platforms.setdefault(image.platform, format_all(image.platform))
        yield (name, tag, image.handler, platform, shown, render.size(image.size))
