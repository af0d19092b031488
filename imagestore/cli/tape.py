"""``imagestore tape``: look after recorded registries."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

import click

from imagestore.cli import render
from imagestore.cli.exit_codes import ExitStatus, say
from imagestore.cli.options import output_option
from imagestore.errors import ImageStoreError
from imagestore.util.text import counted

if TYPE_CHECKING:
    from imagestore.testing.servers.loopback import LoopbackServer
    from imagestore.testing.tapes.tape import Tape

_PLACE = click.Path(path_type=str)


@click.group()
def tape() -> None:
    """Verify, show, serve and share tapes (recorded registries)."""


@tape.command()
@click.argument("places", nargs=-1, required=True, type=_PLACE)
@output_option
@click.pass_context
def verify(ctx: click.Context, places: tuple[str, ...], output: str) -> None:
    """Check tapes and all their bodies; PLACES are tapes or folders."""
    from imagestore.testing.tapes.files import find_tapes
    from imagestore.testing.tapes.maintenance import verify_tape

    found: dict[str, list[str]] = {}
    for path in (path for place in places for path in find_tapes(place)):
        try:
            found[path] = verify_tape(path)
        except ImageStoreError as error:
            found[path] = [str(error)]  # the other tapes are checked all the same
    if output == "json":
        render.dump_json({"tapes": [{"path": path, "problems": each} for path, each in found.items()]})
    else:
        for path, problems in found.items():
            print(f"{render.printable(path)}: {'good' if not problems else f'{len(problems)} problems'}")
            for problem in problems:
                print(f"  {render.printable(problem)}")
    if any(found.values()):
        ctx.exit(ExitStatus.INTEGRITY)


@tape.command("format")
@click.argument("places", nargs=-1, required=True, type=_PLACE)
@output_option
def format_(places: tuple[str, ...], output: str) -> None:
    """Put tapes into canonical form; PLACES are tapes or folders. Comments are left out: the form has none."""
    from imagestore.testing.tapes.files import find_tapes
    from imagestore.testing.tapes.maintenance import canonicalise

    done = {path: canonicalise(path) for place in places for path in find_tapes(place)}
    shown = {"tapes": [{"path": path, "changed": is_changed} for path, is_changed in done.items()]}
    lines = (f"{path}: {'formatted' if is_changed else 'as it was'}" for path, is_changed in done.items())
    render.show(output, shown, lines)


@tape.command()
@click.argument("path", type=_PLACE)
@output_option
def show(path: str, output: str) -> None:
    """Show what a tape serves: hosts, repositories, recorded exchanges, faults."""
    from imagestore.testing.tapes.files import load_tape

    loaded = load_tape(path)
    if output == "json":
        render.dump_json(_summary(loaded))
        return
    print(f"{render.printable(loaded.about or os.path.basename(path))}")
    print(render.printable(f"hosts: {', '.join(loaded.logical_hosts)}"))
    if loaded.plain_names:
        print(render.printable(f"declared harmless: {', '.join(loaded.plain_names)}"))
    rows = [
        (
            f"{one.host}/{one.path}",
            ", ".join(sorted(one.tags)),
            str(len(one.manifests)),
            f"{len(one.blobs)} ({render.size(sum(blob.size for blob in one.blobs))})",
        )
        for one in loaded.repositories
    ]
    if rows:
        render.table(("REPOSITORY", "TAGS", "DOCUMENTS", "BLOBS"), rows)
    lines = [
        (one.method, one.url, str(one.status), render.size(one.body.size if one.body else len(one.text or "")))
        for one in loaded.exchanges
    ]
    if lines:
        render.table(("METHOD", "ADDRESS", "STATUS", "BODY"), lines)
    for rule in loaded.faults:
        print(render.printable("fault: " + ", ".join(f"{key} {value}" for key, value in rule.to_table().items())))


def _say_places(path: str, bodies: str) -> None:
    """Write to standard error where the bodies are, if any, and where a link led the tape to."""
    from imagestore.testing.tapes.blob_folder import real_place, shown_place

    if real_place(path):
        say(render.printable(f"{path} is in {real_place(path)}"))
    if bodies:
        say(render.printable(f"bodies in {shown_place(bodies)}"))


def _summary(loaded: Tape) -> dict[str, object]:
    return {
        "about": loaded.about,
        "hosts": list(loaded.logical_hosts),
        "plain": list(loaded.plain_names),
        "repositories": [
            {
                "name": f"{one.host}/{one.path}",
                "tags": {tag: str(digest) for tag, digest in sorted(one.tags.items())},
                "manifests": [str(content.digest) for content in one.manifests],
                "blobs": [str(content.digest) for content in one.blobs],
            }
            for one in loaded.repositories
        ],
        "exchanges": [{"method": one.method, "url": one.url, "status": one.status} for one in loaded.exchanges],
        "faults": [rule.to_table() for rule in loaded.faults],
        "bytes": sum(one.size for one in loaded.contents().values()),
    }


@tape.command()
@click.argument("folder", type=click.Path(path_type=str, exists=True, file_okay=False))
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be deleted.")
@output_option
def gc(folder: str, dry_run: bool, output: str) -> None:
    """Delete bodies that no tape needs; FOLDER holds tapes."""
    from imagestore.testing.tapes.maintenance import collect_bodies

    cleared = collect_bodies(folder, dry_run=dry_run)
    removed = [str(digest) for digest in cleared.removed]
    shown = {"dryRun": dry_run, "bodies": removed, "bytesFreed": cleared.bytes_freed, "keptBodies": cleared.kept}
    lines = [f"{'would delete' if dry_run else 'deleted'} {digest}" for digest in removed]
    total = f"{render.size(cleared.bytes_freed)} in {len(removed)} bodies; {cleared.kept} bodies kept"
    render.show(output, shown, [*lines, total])


@tape.command("to-layout")
@click.argument("path", type=_PLACE)
@click.argument("folder", type=_PLACE)
@output_option
def to_layout(path: str, folder: str, output: str) -> None:
    """Write a tape's content as an OCI image layout."""
    from imagestore.testing.tapes.blob_folder import BlobFolder
    from imagestore.testing.tapes.files import load_tape, tape_path
    from imagestore.testing.tapes.layout import tape_to_layout

    count = tape_to_layout(load_tape(path), BlobFolder.of_tape(tape_path(path)), folder)
    render.show(output, {"layout": folder, "entries": count}, [f"{folder}: {counted(count, 'entry', 'entries')}"])


@tape.command("from-layout")
@click.argument("folder", type=click.Path(path_type=str, exists=True, file_okay=False))
@click.argument("path", type=_PLACE)
@click.option("--name", required=True, help="Repository for entries without a full reference: registry.example/app.")
@click.option("--about", default="", help="One line for people.")
@output_option
def from_layout(folder: str, path: str, name: str, about: str, output: str) -> None:
    """Make a tape that serves an OCI image layout."""
    from imagestore.testing.tapes.blob_folder import BlobFolder
    from imagestore.testing.tapes.files import save_tape, tape_path
    from imagestore.testing.tapes.layout import layout_to_tape

    blobs = BlobFolder.of_tape(tape_path(path), within=os.getcwd())
    made = layout_to_tape(folder, blobs, name=name, about=about)
    written = save_tape(path, made)
    bodies = blobs.root if made.contents() else ""
    render.show(output, {"tape": written, "bodies": bodies or None}, [written])
    _say_places(written, bodies)


@tape.command()
@click.argument("path", type=_PLACE)
@click.argument("target")
@click.option("--plain-http", is_flag=True, help="The registry has no TLS.")
@output_option
def push(path: str, target: str, plain_http: bool, output: str) -> None:
    """Push a tape (or an OCI layout folder) to a registry as an artifact."""
    from imagestore.testing.tapes import publishing

    if os.path.isfile(os.path.join(path, "oci-layout")):
        publishing.push_layout(path, target, is_plain_http=plain_http)
    else:
        publishing.push_tape(path, target, is_plain_http=plain_http)
    render.show(output, {"target": target}, [f"pushed {target}"])


@tape.command()
@click.argument("target")
@click.argument("path", type=_PLACE)
@click.option("--plain-http", is_flag=True, help="The registry has no TLS.")
@click.option("--layout", is_flag=True, help="The artifact is an OCI layout; PATH is its folder.")
@output_option
def fetch(target: str, path: str, plain_http: bool, layout: bool, output: str) -> None:
    """Fetch a tape (or a layout) that was pushed."""
    from imagestore.testing.tapes import publishing
    from imagestore.testing.tapes.blob_folder import BlobFolder
    from imagestore.testing.tapes.files import load_tape

    bodies = ""
    if layout:
        publishing.fetch_layout(target, path, is_plain_http=plain_http)
    else:
        path = publishing.fetch_tape(target, path, is_plain_http=plain_http)
        bodies = BlobFolder.of_tape(path, within=os.getcwd()).root if load_tape(path).contents() else ""
    render.show(output, {"path": path, "bodies": bodies or None}, [path])
    _say_places(path, bodies)


@tape.command()
@click.argument("path", type=_PLACE)
@click.option("--tls", is_flag=True, help="HTTPS with a throw-away authority.")
@click.option("--proxy", is_flag=True, help="Also an HTTP proxy, for clients that use the logical names.")
@click.option("--port", "ports", multiple=True, metavar="HOST=PORT", help="A fixed port for a logical host.")
@click.option("--authority", type=_PLACE, help="Write the authority's certificate to this file.")
@output_option
def serve(path: str, tls: bool, proxy: bool, ports: tuple[str, ...], authority: str | None, output: str) -> None:
    """Serve a tape on loopback until interrupted, then show what was asked."""
    from imagestore.testing.recording.upstream import port_map
    from imagestore.testing.servers.authority import Authority
    from imagestore.testing.servers.loopback import LoopbackServer
    from imagestore.testing.servers.proxy import ProxyServer
    from imagestore.testing.tapes.replay import replay
    from imagestore.util.files import write_whole

    if authority is not None and not (tls or proxy):
        raise click.UsageError("--authority: only --tls and --proxy have an authority")
    playing = replay(path)
    wanted = port_map(ports)
    unknown = sorted(set(wanted) - set(playing.tape.logical_hosts))
    if unknown:
        known = ", ".join(playing.tape.logical_hosts)
        raise click.UsageError(f"--port {unknown[0]}: the tape has no such host; it has {known}")
    issuer = Authority() if tls or proxy else None
    if authority is not None and issuer is not None:
        write_whole(authority, issuer.pem)
    hosts = playing.tape.logical_hosts
    server: LoopbackServer
    if proxy and issuer is not None:
        server = ProxyServer(playing.engine, hosts, authority=issuer, ports=wanted, tls=tls)
    else:
        server = LoopbackServer(playing.engine, hosts, authority=issuer, ports=wanted)
    with server, contextlib.suppress(KeyboardInterrupt):
        _announce(server, hosts, output)
        threading.Event().wait()
    if output == "table":
        for entry in playing.ledger.entries:
            print(render.printable(str(entry)))


def _announce(server: LoopbackServer, hosts: tuple[str, ...], output: str) -> None:
    from imagestore.testing.servers.proxy import ProxyServer

    places = {host: server.url_of(host) for host in hosts}
    variables = server.environment() if isinstance(server, ProxyServer) else {}
    if output == "json":
        render.dump_json({"hosts": places, "environment": variables})
    else:
        render.table(("HOST", "ADDRESS"), list(places.items()))
        for name, value in sorted(variables.items()):
            print(f"export {name}={value}")
    sys.stdout.flush()
