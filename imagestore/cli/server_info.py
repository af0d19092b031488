"""``imagestore fsinfo``, ``info`` and ``version``."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from imagestore._version import __version__
from imagestore.cli import describe, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import ExitStatus, note, say, warn
from imagestore.cli.options import output_option
from imagestore.cri.model import FilesystemUsage, ImageFilesystems
from imagestore.util import distribution

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@output_option
@pass_app
def fsinfo(app: App, output: str) -> None:
    """Show what images use of their file system, unfinished downloads included."""
    if app.remote is not None:
        found = app.service.filesystems()
    else:
        from imagestore.store.maintenance.usage import content_use

        app.missing = "refuse"
        use = content_use(app.store.content)
        usage = FilesystemUsage(app.store.content.name, time.time_ns(), use.size, use.inodes)
        found = ImageFilesystems((usage,))
    if output == "json":
        render.dump_json(
            {
                "imageFilesystems": _filesystems(found.image_filesystems),
                "containerFilesystems": _filesystems(found.container_filesystems),
            }
        )
        return
    rows = [
        (
            kind,
            each.mountpoint,
            render.size(each.used_bytes),
            "-" if each.inodes_used is None else str(each.inodes_used),
            _moment(each.timestamp_ns) or "-",
        )
        for kind, systems in (("images", found.image_filesystems), ("containers", found.container_filesystems))
        for each in systems
    ]
    render.table(("FOR", "MOUNTPOINT", "USED", "INODES", "AT"), rows)


@click.command()
@output_option
@pass_app
def version(app: App, output: str) -> None:
    """Show this program's version, its commit where that is known and, with --endpoint, the server's version.

    A warning says whether another project with this package's name is, or was, in the same Python environment.
    """
    commit = distribution.commit()
    shown = dict.fromkeys(("runtimeName", "runtimeVersion", "runtimeApiVersion"))
    shown = {"version": __version__, "commit": commit or None, **shown}
    lines = [f"imagestore {__version__}" + (f" (commit {commit})" if commit else "")]
    if other := distribution.other_project():
        note(
            f"warning: {other}, another project, is installed in the same environment ({sys.prefix}); its package has "
            "the same name, so each of the two replaces files of the other"
        )
        say(
            f"  hint: uninstall both there, then install {distribution.DISTRIBUTION} again,"
            " or give each its own environment"
        )
    elif not distribution.is_whole():
        note(
            f"warning: {distribution.DISTRIBUTION}'s own imagestore/__init__.py is not there any more in {sys.prefix};"
            " another project with a package of this name was installed or removed"
        )
        say(f"  hint: install {distribution.DISTRIBUTION} again")
    if app.remote is not None:
        found = app.service.version()
        shown.update(runtimeName=found.name, runtimeVersion=found.version, runtimeApiVersion=found.api_version)
        lines.append(f"{found.name} {found.version} (CRI {found.api_version})")
    render.show(output, shown, lines)


@click.command()
@output_option
@pass_app
def info(app: App, output: str) -> ExitStatus:
    """Show whether a CRI server is ready, and the runtime handlers it knows; needs --endpoint.

    Without --endpoint, on a node whose store is published: the containerd that the configuration names, or that a
    server of this store publishes into, with images by state; as 'imagestore publish --status'.
    """
    if app.remote is None and not app.is_shared:
        from imagestore.cli.publish import address_of

        address = address_of(app)
        if address:
            return _published(app, address, output)
    _served(app, output)
    return ExitStatus.OK


def _published(app: App, address: str, output: str) -> ExitStatus:
    """The state of the containerd that the store is published into."""
    from imagestore.cli import publish_status
    from imagestore.cli.publish import opened

    with opened(app, address) as (publisher, _):
        status = publisher.status()
    handlers = list(app.config.handlers)
    if output == "json":
        shown = {"conditions": [], "runtimeHandlers": handlers, "info": {}}
        render.dump_json({**shown, "containerd": publish_status.status_json(status)})
    else:
        named = [("runtime handler", name) for name in handlers]
        render.table(("WHAT", "STATE"), [*publish_status.summary(status), *named])
        warn("", status.warnings)
    return publish_status.exit_status(status)


def _served(app: App, output: str) -> None:
    from imagestore.cli.remote import parsed

    status = app.service.runtime_status()
    if output == "json":
        conditions = [
            {"type": each.name, "status": each.is_met, "reason": each.reason, "message": each.message}
            for each in status.conditions
        ]
        texts = {key: parsed(text) for key, text in status.info.items()}
        render.dump_json({"conditions": conditions, "runtimeHandlers": list(status.handlers), "info": texts})
        return
    rows = [
        (each.name, "yes" if each.is_met else f"no: {each.reason} {each.message}".rstrip(" :"))
        for each in status.conditions
    ]
    handlers = [("runtime handler", name or "(default)") for name in status.handlers]
    render.table(("WHAT", "STATE"), [*rows, *handlers])


def _filesystems(systems: Sequence[FilesystemUsage]) -> list[dict[str, Any]]:
    return [
        {
            "mountpoint": each.mountpoint,
            "usedBytes": each.used_bytes,
            "inodesUsed": each.inodes_used,
            "timestamp": _moment(each.timestamp_ns),
        }
        for each in systems
    ]


def _moment(nanoseconds: int) -> str | None:
    """RFC 3339; None for a time that no clock shows."""
    seconds = nanoseconds / 10**9
    return describe.time(seconds) if 0 < seconds < 2**33 else None
