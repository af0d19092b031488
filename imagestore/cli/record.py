"""``imagestore record -- COMMAND``: run any client, and keep the registries' answers as a tape."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import click

from imagestore.cli import render
from imagestore.cli.exit_codes import note, report, say
from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from imagestore.testing.servers.proxy import ProxyServer


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--tape", "path", required=True, type=click.Path(path_type=str), help="The tape to write.")
@click.option(
    "--mode",
    type=click.Choice(["once", "new_episodes", "rewrite"]),
    default="once",
    show_default=True,
    help="What to do when the tape exists.",
)
@click.option("--upstream", multiple=True, metavar="HOST=URL", help="Where a logical host really is.")
@click.option("--secret", "secret_names", multiple=True, metavar="VARIABLE", help="A variable that holds a secret.")
@click.option(
    "--plain",
    "plain_names",
    multiple=True,
    metavar="NAME",
    help="A harmless name: of a request header or a parameter.",
)
@click.option("--about", default="", help="One line for people.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def record(
    ctx: click.Context,
    path: str,
    mode: str,
    upstream: tuple[str, ...],
    secret_names: tuple[str, ...],
    plain_names: tuple[str, ...],
    about: str,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND through a recording proxy; nothing is written in which a known secret is left.

    COMMAND gets HTTPS_PROXY and a certificate file, so it uses registries' own names. Clients that don't go through
    a proxy can be pointed at a plain listener: {registry.example} in COMMAND becomes its address, for every host that
    --upstream names.
    """
    from imagestore.testing.recording.upstream import upstream_map
    from imagestore.testing.tapes.blob_folder import shown_place
    from imagestore.testing.tapes.session import SessionSettings, TapeSession

    settings = SessionSettings(
        upstream=upstream_map(upstream),
        known_secrets=tuple(_secret(name) for name in secret_names),
        plain_names=plain_names,
        strict=False,
        about=about,
    )
    with TapeSession(path, mode, settings) as session, session.proxy() as proxy:
        status = _run(command, proxy, frozenset(settings.upstream) | frozenset(session.hosts))
        count = len(session.ledger.entries)
        if status == 0 and not count and session.is_recording:
            raise ConfigError(
                f"record: {command[0]} asked nothing; no tape was written",
                hint="does it use HTTPS_PROXY? else write {host} in the command, and --upstream host=address",
            )
        if status == 0:
            session.finish()
    # A command that failed seldom says why it had no answer; after a success, finish() has raised for these problems.
    for line in "\n".join(session.problems).splitlines():
        say(render.printable(line))
    if status != 0:
        note(f"the command ended with status {status}; no tape was written")
    if not session.is_recording and session.problems:
        ended = report(
            ConfigError(
                f"tape {session.path}: it exists, and doesn't answer all that the command asked",
                hint="--mode new_episodes records what it lacks, --mode rewrite records all of it again",
            )
        )
        ctx.exit(status or ended)
    if status != 0:
        ctx.exit(status)
    verb = "recorded" if session.is_recording else "replayed"
    bodies = f", bodies in {shown_place(session.bodies_folder)}" if session.bodies_folder else ""
    say(render.printable(f"{session.path}: {verb} {count} requests{bodies}"))


def _secret(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise click.UsageError(f"--secret {name}: the variable is not set, or empty")
    return value


def _run(command: tuple[str, ...], proxy: ProxyServer, hosts: frozenset[str]) -> int:
    def _address(found: re.Match[str]) -> str:
        # Other braces belong to the command.
        return proxy.url_of(found[1]).partition("://")[2] if found[1] in hosts else found.group()

    arguments = [re.sub(r"\{([a-z0-9][a-z0-9._-]*(?::[0-9]+)?)\}", _address, one) for one in command]
    environment = {**os.environ, **proxy.environment()}
    try:
        ended = subprocess.run(arguments, env=environment, check=False)
    except OSError as problem:
        raise click.ClickException(f"{arguments[0]}: {problem.strerror}") from problem
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
