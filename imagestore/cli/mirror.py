"""``imagestore mirror``: what nodes need to use a mirror."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagestore.cli.app import App, pass_app
from imagestore.errors import ConfigError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group()
def mirror() -> None:
    """What nodes need to use a mirror; 'imagestore serve --mirror' is one."""


@mirror.command("hosts-toml")
@click.argument("upstreams", nargs=-1, metavar="[UPSTREAM]...")
@click.option("--mirror", "mirrors", multiple=True, metavar="URL", help="A replica; may be repeated.")
@click.option("--ca", metavar="FILE", help="The authority of the replicas' certificates, where nodes have it.")
@click.option("--client", nargs=2, metavar="CERTIFICATE KEY", help="The nodes' own, for private upstreams.")
@click.option("--only-digests", is_flag=True, help="Nodes ask the registry itself what a tag means.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write a folder for each upstream there, as containerd's certs.d has them, instead of printing.",
)
@pass_app
def hosts_toml(
    app: App,
    upstreams: tuple[str, ...],
    mirrors: tuple[str, ...],
    ca: str | None,
    client: tuple[str, str] | None,
    only_digests: bool,
    directory: Path | None,
) -> None:
    """Write the hosts.toml that points nodes at a mirror, for each UPSTREAM of its configuration (by default all).

    The replicas are those of the configuration unless --mirror names others. The registry itself stays the last host,
    so that nodes pull also while the mirror is away.
    """
    settings = app.config.settings.mirror
    unknown = [name for name in upstreams if name not in settings.upstreams]
    if unknown:
        known = ", ".join(settings.upstreams) or "none"
        raise InvalidInputError(f"upstream {unknown[0]!r}: is not in the configuration", hint=f"it has: {known}")
    urls = tuple(url.rstrip("/") for url in mirrors or settings.replicas)
    if not urls:
        raise click.UsageError("the configuration names no replicas: give --mirror http://ADDRESS:PORT")
    names = upstreams or tuple(settings.upstreams)
    if not names:
        raise ConfigError(
            "the configuration names no upstream",
            hint='add a table [plugins."io.imagestore.mirror.v1".upstreams."docker.io"]',
        )
    for number, name in enumerate(names):
        text = hosts_text(name, urls, ca=ca or "", client=client, only_digests=only_digests)
        if directory is None:
            click.echo("\n" * bool(number) + f"# {folder_name(name)}/hosts.toml\n{text}", nl=False)
        else:
            path = directory / folder_name(name) / "hosts.toml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            click.echo(os.fspath(path))


def folder_name(host: str) -> str:
    """The folder that containerd reads for a registry host; every file system allows it.

    >>> folder_name("registry.example:5000")
    'registry.example_5000_'
    """
    name, colon, port = host.rpartition(":")
    return f"{name}_{port}_" if colon and port.isdecimal() else host


def hosts_text(
    upstream: str, urls: Sequence[str], *, ca: str, client: tuple[str, str] | None, only_digests: bool
) -> str:
    """One hosts.toml (containerd, docs/hosts.md).

    Args:
        upstream: a registry's host.
        urls: of the replicas, in the order to ask them.
        ca: file with their authority; empty for the system's.
        client: files of a certificate and its key.
        only_digests: the registry itself is asked what a tag means.
    """
    import tomli_w

    from imagestore.registry.endpoints import default_endpoint

    host: dict[str, Any] = {"capabilities": ["pull"] if only_digests else ["pull", "resolve"]}
    if ca:
        host["ca"] = ca
    if client is not None:
        host["client"] = [list(client)]
    server = default_endpoint(upstream).base.removesuffix("/v2")
    return tomli_w.dumps({"server": server, "host": dict.fromkeys(urls, host)})
