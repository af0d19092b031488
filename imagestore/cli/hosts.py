"""``imagestore hosts``: where a reference would be fetched from, in which order, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import render
from imagestore.cli.app import App, output_option, pass_app
from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from imagestore.config.hosts import RegistryHosts
    from imagestore.oci.reference import Reference
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.transport.proxy import ProxyRules


@dataclass(frozen=True, slots=True)
class _Known:
    """What the ways to endpoints depend on: proxies, whose credentials mirrors see, which mirrors rest now, and which
    endpoints' certificate files can't be used, and why."""

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
    """What is unusual about the way to an endpoint; header values stay out, they may be secrets."""
    from imagestore.registry.transport import urls

    shown_to = {} if endpoint.is_upstream else known.mirror_credentials
    settings, proxy = endpoint.connection, known.proxies.proxy_for(endpoint.origin)
    # Over plain http no certificate is shown, and none is checked.
    is_encrypted = endpoint.origin.scheme == "https"
    fault = known.faults.get(endpoint.base)
    told = {
        "could not be reached and is left out for up to a minute": endpoint.base in known.resting,
        "not encrypted: plain http": endpoint.origin.scheme == "http",
        "certificates are not checked: skip_verify": settings.skip_verify and is_encrypted,
        f"can't be asked: {fault}": fault is not None,
        f"trusts authorities in {', '.join(settings.ca_files)}": bool(settings.ca_files)
        and is_encrypted
        and fault is None,
        f"shows client certificate {', '.join(pair[0] for pair in settings.client_pairs)}": bool(settings.client_pairs)
        and is_encrypted
        and fault is None,
        f"sends header fields {', '.join(dict.fromkeys(name for name, _ in endpoint.headers))}": bool(endpoint.headers),
        f"through proxy {urls.shown(proxy)}": bool(proxy),
        f"is shown the credentials of {shown_to.get(endpoint.host, '')}": endpoint.host in shown_to,
    }
    return [note for note, applies in told.items() if applies]


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
