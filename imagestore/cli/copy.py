"""``imagestore copy`` and ``imagestore push``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli import completion, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import ExitStatus, note
from imagestore.cli.options import (
    access_options,
    all_of,
    duration_option,
    handlers_option,
    lookup,
    output_option,
    progress_option,
    refuse_together,
)
from imagestore.cli.progress import observer as observer_for
from imagestore.cli.signals import cancelled_by_signals
from imagestore.oci.reference import Reference
from imagestore.store.copy.options import CopyOptions, CopyReport, ImageLocation, LocationKind
from imagestore.util.text import counted

if TYPE_CHECKING:
    from imagestore.store.copy.syncing import Failed, SyncItem
    from imagestore.util.cancel import CancelToken

#: How names of archives end.
_ARCHIVES: Final = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz")
_copying = all_of(
    handlers_option(
        "Copy this handler's manifest; may be repeated, and then the index goes along. "
        "Default: all from one registry into another, else the configured default handler's."
    ),
    click.option("--all-handlers", is_flag=True, help="The manifests of every handler, with their index."),
    click.option("--platform", metavar="P", default="", help="This platform's manifest, instead of a handler's."),
    click.option("--all-platforms", is_flag=True, help="Every manifest that the source has, with their index."),
    click.option("--referrers", is_flag=True, help="Also what refers to the image: signatures, bills of materials."),
    click.option("--with-foreign-layers", is_flag=True, help="Send layers too that have an address of their own."),
    click.option("--dry-run", "-n", is_flag=True, help="Only show what would be sent."),
    duration_option("--deadline", help="Give up after this time, for example 90s."),
    click.option("--quiet", "-q", is_flag=True, help="Print the digest alone, and no progress."),
    progress_option(),
    access_options,
    output_option,
    pass_app,
)


@click.command()
@click.argument("source", shell_complete=completion.images)
@click.argument("destination")
@click.option("--image", metavar="NAME", default="", help="Which image of the source's archive.")
@click.option("--name", metavar="REF", default="", help="What the image is called in the destination's archive.")
@click.option("--replace", is_flag=True, help="Move a name of the store that leads to other content.")
@click.option("--all-tags", is_flag=True, help="Every tag of the repository SOURCE, into the repository DESTINATION.")
@_copying
def copy(
    app: App,
    source: str,
    destination: str,
    image: str,
    name: str,
    replace: bool,
    all_tags: bool,
    **given: Any,
) -> ExitStatus:
    """Copy an image from SOURCE to DESTINATION; bytes are verified on both sides.

    A reference means its registry. The store is store:NAME, an OCI layout oci:FOLDER, an archive oci-archive:FILE or
    docker-archive:FILE.

    From one registry into another a multi-platform image goes as a whole. A handler or a platform chooses one manifest,
    and without one the default handler's goes from and to all other places. The index goes along, with the same digest,
    for --all-handlers and --all-platforms. Registries that want every manifest of an index refuse one that lacks some.

    With --referrers, what refers to the image goes along: from and to every place but a docker-archive.

    \b
    imagestore copy python:3 registry.example/python:3
    imagestore copy store:python:3 oci:layout --runtime-handler kata
    imagestore copy oci-archive:python.tar registry.example/python:3
    imagestore copy --all-tags registry.example/app other.example/app
    """
    origin, target = ImageLocation.parse(source), ImageLocation.parse(destination)
    _refuse_other_tools_places(origin, target)
    # Options that would have no effect.
    if image and not origin.is_archive:
        raise click.UsageError("--image is for a source that is an archive or a layout")
    if name and not target.is_archive:
        raise click.UsageError("--name is for a destination that is an archive or a layout")
    if replace and target.kind is not LocationKind.STORE:
        raise click.UsageError("--replace is for the store as destination")
    if all_tags:
        return _copy_tags(app, origin, target, **given)
    _run(app, origin, target, more={"image": image, "name": name, "replace": replace}, **given)
    return ExitStatus.OK


def _copy_tags(
    app: App,
    origin: ImageLocation,
    target: ImageLocation,
    *,
    referrers: bool,
    dry_run: bool,
    deadline: float | None,
    progress: str,
    creds_stdin: bool,
    anonymous: bool,
    output: str,
    **others: Any,
) -> ExitStatus:
    """As sync for one repository: what is there already is left alone."""
    from imagestore.cli.sync import bring
    from imagestore.store.copy.syncing import plan_of_tags

    if any(others.values()):
        raise click.UsageError("--all-tags takes all platforms, and goes with neither handlers nor --quiet")
    source, destination = map(_repository, (origin, target))
    app.missing = "empty"
    app.credentials = lookup(destination.host, creds_stdin=creds_stdin, anonymous=anonymous, has_others=True)

    def _plan(_failed: Failed, cancel: CancelToken) -> list[SyncItem]:
        return plan_of_tags(app.store, source, destination, referrers=referrers, cancel=cancel)

    return bring(app, _plan, keep_going=False, dry_run=dry_run, progress=progress, output=output, deadline=deadline)


def _repository(place: ImageLocation) -> Reference:
    if place.kind is LocationKind.REGISTRY:
        parsed = Reference.parse(place.name)
        if parsed.digest is None and not place.name.endswith(f":{parsed.tag}"):
            return parsed
    raise click.UsageError(f"{place}: --all-tags copies from one repository of a registry into another, without tags")


@click.command()
@click.argument("name", shell_complete=completion.images)
@click.argument("destination", required=False, default="")
@_copying
def push(app: App, name: str, destination: str, **given: Any) -> None:
    """Copy the image NAME of the store into a registry, as DESTINATION or under its own name.

    The default handler's manifest goes alone; with --all-handlers the index goes along.

    \b
    imagestore push python:3 registry.example/python:3
    """
    from imagestore.store.copy.opening import find_stored

    app.missing = "refuse"
    if not destination:
        options = CopyOptions(given["handlers"], given["all_handlers"], given["platform"], given["all_platforms"])
        default = app.config.default_handler
        destination, _ = find_stored(app.store.metadata, name, options, default_handler=default)
    _run(app, ImageLocation(LocationKind.STORE, name), ImageLocation.parse(destination), more={}, **given)


def _run(
    app: App,
    origin: ImageLocation,
    target: ImageLocation,
    *,
    more: dict[str, Any],
    handlers: tuple[str, ...],
    all_handlers: bool,
    platform: str,
    all_platforms: bool,
    referrers: bool,
    with_foreign_layers: bool,
    dry_run: bool,
    deadline: float | None,
    quiet: bool,
    progress: str,
    creds_stdin: bool,
    anonymous: bool,
    output: str,
) -> None:
    refuse_together(
        runtime_handler=handlers, all_handlers=all_handlers, platform=platform or None, all_platforms=all_platforms
    )
    if quiet and output == "json":
        raise click.UsageError("--quiet and --output json exclude each other")
    if with_foreign_layers and target.kind is not LocationKind.REGISTRY:
        raise click.UsageError("--with-foreign-layers is for a registry as destination")
    from_store, into_store = (place.kind is LocationKind.STORE for place in (origin, target))
    app.missing = "refuse" if from_store else "make" if into_store else "empty"
    what = (handlers, all_handlers, platform, all_platforms, referrers)
    options = CopyOptions(*what, dry_run=dry_run, with_foreign_layers=with_foreign_layers, **more)
    # Credentials from standard input are for the last of the places that is a registry.
    registries = [place.name for place in (origin, target) if place.kind is LocationKind.REGISTRY]
    host = Reference.parse(registries[-1]).host if registries else ""
    credentials = lookup(host, creds_stdin=creds_stdin, anonymous=anonymous, has_others=True)
    with (
        cancelled_by_signals(deadline_seconds=deadline) as token,
        observer_for("none" if quiet else progress) as observer,
    ):
        report = app.store.copy(
            str(origin), str(target), options=options, credentials=credentials, observer=observer, cancel=token
        )
    if quiet:
        print(report.target.digest)
        if report.left_out:
            note(f"left out: {', '.join(report.left_out)}")
    elif output == "json":
        render.dump_json(_members(report))
    else:
        _show(report)


def _refuse_other_tools_places(origin: ImageLocation, target: ImageLocation) -> None:
    """Refuse what would be read otherwise than it was meant: files without a kind, and skopeo's ``oci:PATH:TAG``.

    Raises:
        click.UsageError: says how it is written here.
    """
    for place, option in ((origin, "--image"), (target, "--name")):
        path = place.name
        if place.kind is LocationKind.REGISTRY and (path.endswith(_ARCHIVES) or os.path.exists(path)):
            meant = "oci" if os.path.isdir(path) else "oci-archive"
            raise click.UsageError(
                f"'{path}' looks like a file, and means a repository of {Reference.parse(path).host}: "
                f"write {meant}:{path}, or the repository with its host"
            )
        folder, colon, tag = path.rpartition(":")
        if place.is_archive and colon and "/" not in tag and not os.path.exists(path):
            form = place.kind.value
            raise click.UsageError(
                f"'{place}': the image's name is no part of a path here: write {form}:{folder} {option} REF"
            )


def _show(report: CopyReport) -> None:
    verb = "would copy" if report.is_dry_run else "copied"
    shown = ", ".join(map(render.printable, report.platforms))
    print(f"{verb} {shown} to {render.printable(report.destination)}: {report.target.digest}")
    if report.left_out:
        print(f"left out: {', '.join(map(render.printable, report.left_out))}")
    if report.referrers:
        print(f"with {counted(report.referrers, 'referrer')}")
    if report.blobs:
        sent = [blob for blob in report.blobs if blob.sent]
        mounted = sum(bool(blob.mounted_from) for blob in report.blobs)
        there = len(report.blobs) - len(sent) - mounted
        is_written = ImageLocation.parse(report.destination).is_archive
        did = "write" if is_written else "send"
        did = f"to {did}" if report.is_dry_run else "written" if is_written else "sent"
        already = "" if is_written else f", {mounted} mounted, {there} there already"
        print(f"{counted(len(sent), 'blob')} {did} ({render.size(report.sent)}){already}")


def _members(report: CopyReport) -> dict[str, object]:
    return {
        "destination": report.destination,
        "target": report.target.members(),
        "platforms": list(report.platforms),
        "leftOut": list(report.left_out),
        "blobs": [
            {"digest": str(each.descriptor.digest), "size": each.descriptor.size, "sent": each.sent}
            | ({"mountedFrom": each.mounted_from} if each.mounted_from else {})
            for each in report.blobs
        ],
        "sent": report.sent,
        "referrers": report.referrers,
        "dryRun": report.is_dry_run,
    }
