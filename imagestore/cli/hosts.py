"""``imagestore hosts`` shows the hosts of a reference; ``imagestore mirror`` writes the hosts.toml of nodes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import render
from imagestore.cli.app import App, pass_app
from imagestore.cli.options import output_option
from imagestore.errors import ConfigError, InvalidInputError
from imagestore.util.logins import without_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from imagestore.config.hosts import RegistryHosts
    from imagestore.oci.reference import Reference
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.transport.proxy import ProxyRules


@dataclass(frozen=True, slots=True)
class _Known:
    """What pulls know about endpoints.

    Attributes:
        proxies: of the environment.
        mirror_credentials: the registry whose credentials a mirror sees, by the mirror's host.
        resting: URLs of mirrors that are skipped for now.
        faults: errors of certificate files, by URL.
    """

    proxies: ProxyRules
    mirror_credentials: Mapping[str, str]
    resting: frozenset[str]
    faults: Mapping[str, ConfigError]


@click.command()
@click.argument("reference")
@output_option
@pass_app
def hosts(app: App, reference: str, output: str) -> None:
    """Show which hosts would be asked for REFERENCE, in order, and what made them so.

    Nothing is sent. Certificate files are read as a pull would read them, and end this command as they would end that.
    A host without the capability "resolve" is not asked what a tag means ("content" in the column
    ASKED), one without "pull" is not asked at all; the registry itself comes last.
    """
    from imagestore.config.hosts import reader_for
    from imagestore.oci.reference import Reference
    from imagestore.registry.endpoints import endpoints_from
    from imagestore.registry.mirrors import STATE_FOLDER, Breaker
    from imagestore.registry.transport.proxy import ProxyRules

    parsed = Reference.parse(reference)
    configured = reader_for(app.config)(parsed.host)
    endpoints = endpoints_from(parsed.host, configured)
    breaker = Breaker(str(app.root / STATE_FOLDER))
    known = _Known(
        ProxyRules.from_environment(),
        app.config.settings.registry.mirror_credentials,
        frozenset(each.base for each in endpoints if not each.is_upstream and breaker.is_open(each)),
        dict(_faults(endpoints)),
    )
    if output == "json":
        render.dump_json(_as_json(parsed, configured, endpoints, known))
    else:
        _print(parsed, configured, endpoints, known)
    for fault in known.faults.values():
        raise fault


def _faults(endpoints: Iterable[Endpoint]) -> Iterator[tuple[str, ConfigError]]:
    """What a pull would fail with before it has sent anything, by the endpoint's URL."""
    for endpoint in filter(_is_asked, endpoints):
        settings = endpoint.connection
        if endpoint.origin.scheme != "https" or not (settings.ca_files or settings.client_pairs):
            continue
        from imagestore.registry.transport import tls

        try:
            tls.make_context(settings)
        except ConfigError as error:
            yield endpoint.base, error


def _print(reference: Reference, configured: RegistryHosts, endpoints: Sequence[Endpoint], known: _Known) -> None:
    rows = [_row(position, endpoint, reference) for position, endpoint in enumerate(endpoints, 1)]
    render.table(("#", "ENDPOINT", "ROLE", "ASKED", "CAPABILITIES", "BECAUSE OF"), rows)
    for endpoint in endpoints:
        for note in _notes(endpoint, known):
            print(f"{render.printable(endpoint.host)}: {render.printable(note)}")
    for remark in configured.remarks:
        print(f"remark: {render.printable(str(remark))}")


def _row(position: int, endpoint: Endpoint, reference: Reference) -> tuple[str, ...]:
    asked = "yes" if _resolves(endpoint, reference) else "content" if _is_asked(endpoint) else "no"
    role = "registry" if endpoint.is_upstream else "mirror"
    return (str(position), endpoint.base, role, asked, ",".join(sorted(endpoint.capabilities)), endpoint.source)


def _is_asked(endpoint: Endpoint) -> bool:
    from imagestore.registry.endpoints import PULL

    return PULL in endpoint.capabilities


def _resolves(endpoint: Endpoint, reference: Reference) -> bool:
    from imagestore.registry.endpoints import RESOLVE

    return _is_asked(endpoint) and (reference.digest is not None or RESOLVE in endpoint.capabilities)


def _notes(endpoint: Endpoint, known: _Known) -> list[str]:
    """What is unusual about the requests to an endpoint; without header values, which may be secrets."""
    from imagestore.registry.transport import urls

    shown_to = {} if endpoint.is_upstream else known.mirror_credentials
    settings, proxy = endpoint.connection, known.proxies.proxy_for(endpoint.origin)
    # Over plain http no certificate is shown, and none is checked.
    is_encrypted = endpoint.origin.scheme == "https"
    fault = known.faults.get(endpoint.base)
    has_files = is_encrypted and fault is None
    applying = {
        "could not be reached and is left out for up to a minute": endpoint.base in known.resting,
        "not encrypted: plain http": endpoint.origin.scheme == "http",
        "certificates are not checked: skip_verify": settings.skip_verify and is_encrypted,
        f"can't be asked: {fault}": fault is not None,
        f"trusts authorities in {', '.join(settings.ca_files)}": has_files and settings.ca_files,
        f"shows client certificate {', '.join(pair[0] for pair in settings.client_pairs)}": has_files
        and settings.client_pairs,
        f"sends header fields {', '.join(dict.fromkeys(name for name, _ in endpoint.headers))}": endpoint.headers,
        f"through proxy {urls.shown(proxy)}": proxy,
        f"is shown the credentials of {shown_to.get(endpoint.host, '')}": endpoint.host in shown_to,
    }
    return [note for note, applies in applying.items() if applies]


def _as_json(
    reference: Reference,
    configured: RegistryHosts,
    endpoints: Sequence[Endpoint],
    known: _Known,
) -> dict[str, Any]:
    return {
        "reference": str(reference),
        "folder": configured.folder,
        "endpoints": [
            {
                "url": endpoint.base,
                "isUpstream": endpoint.is_upstream,
                "isAsked": _is_asked(endpoint),
                "isAskedToResolve": _resolves(endpoint, reference),
                "capabilities": sorted(endpoint.capabilities),
                "source": endpoint.source,
                "notes": _notes(endpoint, known),
            }
            for endpoint in endpoints
        ],
        "remarks": list(map(str, configured.remarks)),
    }


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
    from imagestore.mirror import MIRROR_PLUGIN

    settings = app.plugin(MIRROR_PLUGIN)
    unknown = [name for name in upstreams if name not in settings.upstreams]
    if unknown:
        known = ", ".join(settings.upstreams) or "none"
        raise InvalidInputError(
            f"upstream {without_login(unknown[0])!r}: is not in the configuration", hint=f"it has: {known}"
        )
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
        text = hosts_text(name, urls, ca=ca, client=client, only_digests=only_digests)
        if directory is None:
            click.echo("\n" * bool(number) + f"# {folder_name(name)}/hosts.toml\n{text}", nl=False)
        else:
            path = directory / folder_name(name) / "hosts.toml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            click.echo(os.fspath(path))


def folder_name(host: str) -> str:
    """The folder that containerd reads for a registry host.

    >>> folder_name("registry.example:5000")
    'registry.example_5000_'
    """
    name, colon, port = host.rpartition(":")
    return f"{name}_{port}_" if colon and port.isdecimal() else host


def hosts_text(
    upstream: str, urls: Sequence[str], *, ca: str | None, client: tuple[str, str] | None, only_digests: bool
) -> str:
    """One hosts.toml (containerd, docs/hosts.md) that sends nodes to the replicas first, in their order."""
    import tomli_w

    from imagestore.registry.endpoints import default_endpoint

    host: dict[str, Any] = {"capabilities": ["pull"] if only_digests else ["pull", "resolve"]}
    if ca:
        host["ca"] = ca
    if client is not None:
        host["client"] = [list(client)]
    server = default_endpoint(upstream).base.removesuffix("/v2")
    return tomli_w.dumps({"server": server, "host": dict.fromkeys(urls, host)})
