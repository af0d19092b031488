"""``imagestore export`` and ``imagestore import``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from imagestore.cli import completion, describe, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import say
from imagestore.cli.options import all_of, handlers_option, output_option, progress_option, refuse_together
from imagestore.cli.progress import observer as observer_for
from imagestore.cli.signals import cancelled_by_signals
from imagestore.errors import InvalidInputError
from imagestore.store import record_lookup
from imagestore.util.text import counted

if TYPE_CHECKING:
    from imagestore.store.archive.index_survey import ExportedImage

_PIPE = "-"


_shared_options = all_of(
    handlers_option("For this handler; may be repeated. Default: the configured default handler."),
    click.option("--all-handlers", is_flag=True, help="For every handler."),
    click.option("--platform", metavar="P", default="", help="For this platform, instead of a handler's."),
    progress_option(),
    output_option,
)


@click.command()
@click.argument("file")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=completion.images)
@_shared_options
@click.option("--all-platforms", is_flag=True, help="Every manifest that the store has whole, for any handler.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["oci-archive", "oci", "docker-archive"]),
    default="oci-archive",
    show_default=True,
    help="Form of the archive, named as in skopeo; oci is a folder. docker-archive keeps image ids, "
    "but not the digests of manifests and compressed layers.",
)
@click.option(
    "--as",
    "shape",
    type=click.Choice(["index", "manifest"]),
    default="index",
    show_default=True,
    help="What a name of a multi-platform image leads to: its index, whose other platforms then are missing from the "
    "archive ('ctr images import' needs --platform for it), or the one manifest.",
)
@pass_app
def export(
    app: App,
    file: str,
    names: tuple[str, ...],
    handlers: tuple[str, ...],
    all_handlers: bool,
    platform: str,
    progress: str,
    output: str,
    all_platforms: bool,
    form: str,
    shape: str,
) -> None:
    """Write images into FILE ('-': standard output), for imagestore, ctr, skopeo, podman or docker to read.

    Without options the default handler's image goes, and of its index only the manifest that is in the store. The same
    images give the same bytes.
    """
    from imagestore.store.archive.contents import ArchiveFormat
    from imagestore.store.archive.exporting import ExportOptions, ExportShape

    refuse_together(runtime_handler=handlers, all_handlers=all_handlers, platform=platform or None)
    refuse_together(platform=platform or None, all_platforms=all_platforms)
    if file == _PIPE and (output == "json" or form == "oci"):
        raise click.UsageError("standard output can't carry the archive and also JSON, or a folder")
    if file == _PIPE and sys.__stdout__ is None:
        raise InvalidInputError("standard output is closed", hint="send it to a file or a pipe")
    for name in names:
        record_lookup.refuse_unreadable(name)
    options = ExportOptions(handlers, all_handlers, platform, all_platforms, ArchiveFormat(form), ExportShape(shape))
    # An export may be the first step to free a full disk.
    app.missing, app.is_freeing = "refuse", True
    with cancelled_by_signals() as token, observer_for(progress) as observer:
        report = app.store.export_images(names, file, options=options, observer=observer, cancel=token)
    if output == "json":
        render.dump_json({"images": [_exported(image) for image in report.images], "size": report.size})
        return
    write = say if file == _PIPE else print
    for image in report.images:
        write(f"{image.reference}: {', '.join(map(render.printable, image.platforms))}")
        if image.left_out:
            others = ", ".join(map(render.printable, image.left_out))
            write(f"{image.reference}: not in the archive: {others}")
    write(f"{render.size(report.size)} written to {render.printable(file)}")


@click.command("import")
@click.argument("file")
@_shared_options
@click.option(
    "--all-platforms", is_flag=True, help="Keep every manifest of the archive, not only those that handlers chose."
)
@click.option("--image", "images", metavar="NAME", multiple=True, help="Only this image of the archive; repeatable.")
@click.option("--name", metavar="REF", default="", help="Record the archive's one image under this reference.")
@click.option("--replace", is_flag=True, help="Move names that lead to other content in the store.")
@pass_app
def import_(
    app: App,
    file: str,
    handlers: tuple[str, ...],
    all_handlers: bool,
    platform: str,
    progress: str,
    output: str,
    all_platforms: bool,
    images: tuple[str, ...],
    name: str,
    replace: bool,
) -> None:
    """Import images from FILE ('-': standard input): an OCI layout (tar or folder) or what 'docker save' wrote.

    The archive, and the layers in it, may be compressed with gzip, bzip2, xz or zstd.

    Of a multi-platform image the manifest is taken that the handler's sandbox can run. Everything is verified; on
    failure the store stays as it was. Names come from the archive, and never move a name of the store to other content
    without --replace.
    """
    from imagestore.store.archive.importing import ImportOptions

    refuse_together(runtime_handler=handlers, all_handlers=all_handlers, platform=platform or None)
    app.missing = "make"
    options = ImportOptions(handlers, all_handlers, platform, all_platforms, images, name, replace)
    with cancelled_by_signals() as token, observer_for(progress) as observer:
        report = app.store.import_images(file, options=options, observer=observer, cancel=token)
    lines = [f"{image.reference} ({image.runtime_handler}): {image.id}" for image in report.images]
    if report.unused_blobs:
        blobs = counted(report.unused_blobs, "blob")
        verb = "was" if report.unused_blobs == 1 else "were"
        lines.append(f"{blobs} ({render.size(report.unused_bytes)}) of the archive {verb} not needed")
    shown = {
        "images": [describe.image(image, app.pins) for image in report.images],
        "unusedBlobs": report.unused_blobs,
        "unusedBytes": report.unused_bytes,
    }
    render.show(output, shown, lines)


def _exported(image: ExportedImage) -> dict[str, object]:
    return {
        "reference": str(image.reference),
        "target": image.target.members(),
        "platforms": list(image.platforms),
        "leftOut": list(image.left_out),
    }
