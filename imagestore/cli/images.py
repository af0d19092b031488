"""``imagestore images`` and ``inspecti``."""

from __future__ import annotations

import fnmatch
import os
import sys
from typing import TYPE_CHECKING

import click

from imagestore.cli import completion, describe, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.describe import familiar
from imagestore.cli.options import handler_option, output_option
from imagestore.errors import StoreMissingError
from imagestore.metadata.sqlite.summaries import ImageSummary, read_summaries
from imagestore.platforms import format_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imagestore.platforms import Platform
    from imagestore.store.image import Image


@click.command()
@click.argument("name", required=False, shell_complete=completion.images)
@handler_option("Only images of this handler.")
@click.option("-q", "--quiet", is_flag=True, help="Only image ids, in place of the table.")
@click.option("--no-trunc", is_flag=True, help="Whole image ids.")
@output_option
@pass_app
def images(app: App, name: str | None, runtime_handler: str | None, quiet: bool, no_trunc: bool, output: str) -> None:
    """List images, one line for each (image, runtime handler).

    NAME limits the list to a reference, a repository with all its tags, an image id or the beginning of one (four
    digits or more), or to the references that fit a pattern of *, ? and [...].

    \b
    imagestore images python
    imagestore images 'registry.example/*:3.*'
    """
    if name is not None and not name:
        raise click.UsageError("an empty name means no image")
    if app.remote is not None:
        from imagestore.cli import remote

        remote.refuse_empty_handler(runtime_handler)
        remote.show_list(app.service, name, runtime_handler, is_quiet=quiet, has_whole_ids=no_trunc, output=output)
        return
    if name is not None and not _is_pattern(name):
        from imagestore.store import record_lookup

        record_lookup.refuse_unreadable(name)
    app.missing = "unnamed"
    if output == "json":
        shown = _of_store(app, name, runtime_handler)
        render.dump_json({"images": (describe.image(each, app.pins) for each in shown)})
        return
    found = _summaries(app, name, runtime_handler)
    if quiet:
        sys.stdout.writelines(f"{each.image_id}\n" for each in found)
        return
    render.table(describe.IMAGE_HEADINGS, _rows(found, has_whole_ids=no_trunc))


def _summaries(app: App, name: str | None, handler: str | None) -> Iterable[ImageSummary]:
    """The lines of the table; without conditions straight from the database, without store and configuration."""
    # A bucket or a scope is refused where the store is opened.
    if name is None and handler is None and not (app.is_shared or app.content or app.scope):
        if app.given_config is not None and not os.access(app.given_config, os.R_OK):
            _ = app.config  # raises with the reason
        found = read_summaries(app.root / "metadata.db")
        if found is not None:
            return found
    return (
        ImageSummary(each.reference, each.runtime_handler, str(each.id), each.platform, each.size)
        for each in _of_store(app, name, handler)
    )


def _of_store(app: App, name: str | None, handler: str | None) -> Iterable[Image]:
    try:
        return _listed(app, name, handler)
    except StoreMissingError:
        if not app.is_shared:
            raise
        return []  # the first machine that pulls makes one


def _listed(app: App, name: str | None, handler: str | None) -> Iterable[Image]:
    """What a name, a repository or a pattern means; as docker has it, a name without a tag means all its tags."""
    if name is None:
        return app.store.list(runtime_handler=handler)
    if _is_pattern(name):
        return (each for each in app.store.list(runtime_handler=handler) if _fits(each.reference, name))
    from imagestore.store import record_lookup

    if record_lookup.untagged(name):
        repository = _repository(name)
        kept = [each for each in app.store.list(runtime_handler=handler) if _repository(each.reference) == repository]
        if kept:
            return kept
    return app.store.list(name=name, runtime_handler=handler)


def _is_pattern(name: str) -> bool:
    return any(character in name for character in "*?[")


def _fits(reference: str, pattern: str) -> bool:
    """Whether a reference fits as it is, as people write it, or without its tag."""
    name, tag = familiar(reference)
    forms = (reference, f"{name}:{tag}", name, _repository(reference))
    return any(fnmatch.fnmatchcase(form, pattern) for form in forms)


def _repository(reference: str) -> str:
    from imagestore.oci.reference import Reference

    return Reference.parse(reference).name


def _rows(images: Iterable[ImageSummary], *, has_whole_ids: bool) -> Iterator[tuple[str, ...]]:
    # A list has thousands of lines and few platforms.
    platforms: dict[Platform, str] = {}
    for image in images:
        name, tag = familiar(image.reference)
        shown = image.image_id if has_whole_ids else image.image_id.partition(":")[2][:12]
        platform = platforms.get(image.platform) or platforms.setdefault(image.platform, format_all(image.platform))
        yield (name, tag, image.handler, platform, shown, render.size(image.size))


@click.command()
@click.argument("name", shell_complete=completion.images)
@handler_option("This handler's image; by default the default handler's.")
@output_option
@pass_app
def inspecti(app: App, name: str, runtime_handler: str | None, output: str) -> None:
    """Show one image: manifest, config, platform, and its layers' files.

    NAME is a reference, an image id or the beginning of one (four digits or more), or name@digest.
    """
    if app.remote is not None:
        from imagestore.cli import remote

        remote.show_image(app.service, name, runtime_handler, output=output)
        return
    from imagestore.store import record_lookup

    record_lookup.refuse_unreadable(name)
    app.missing = "unnamed"
    found = app.store.get(name, runtime_handler=runtime_handler)
    shown = describe.image_in_full(found, app.pins)
    if output == "json":
        render.dump_json(shown)
        return
    layers = [f"{each.get('path', each['digest'])} ({render.size(each['size'])})" for each in shown["layers"]]
    render.table(("FIELD", "VALUE"), describe.facts(shown, [shown["reference"]], layers))
