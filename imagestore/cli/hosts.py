"""``imagestore hosts``: where a reference would be fetched from, in which order, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import render
from imagestore.cli.context import App, output_option, pass_app

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.config.hosts import RegistryHosts
    from imagestore.reference import Reference
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.transport.proxies import ProxyRules


@click.command()
@click.argument("reference")
@output_option
@pass_app
def hosts(app: App, reference: str, output: str) -> None:
    """Show which hosts would be asked for REFERENCE, in order, and what made them so.

    Nothing is sent. A host without the capability "resolve" is not asked what a tag means, one without "pull" is not
    asked at all; the registry itself comes last.
    """
    from imagestore.config.registry_hosts import reader_for
    from imagestore.reference import Reference
    from imagestore.registry.endpoints import endpoints_from
    from imagestore.registry.transport.proxies import ProxyRules

    parsed = Reference.parse(reference)
    configured = reader_for(app.config)(parsed.host)
    endpoints = endpoints_from(parsed.host, configured)
    proxies = ProxyRules.from_environment()
    shown_to = app.config.settings.registry.mirror_credentials
    if output == "json":
        render.dump_json(_as_json(parsed, configured, endpoints, proxies, shown_to))
        return
    rows = [_row(position, endpoint, parsed) for position, endpoint in enumerate(endpoints, 1)]
    render.table(("#", "ENDPOINT", "ROLE", "ASKED", "CAPABILITIES", "BECAUSE OF"), rows)
    for endpoint in endpoints:
        for note in _notes(endpoint, proxies, shown_to):
            print(f"{render.printable(endpoint.host)}: {render.printable(note)}")
    for remark in configured.remarks:
        print(f"ignored: {render.printable(remark)}")


def _row(position: int, endpoint: Endpoint, reference: Reference) -> tuple[str, ...]:
    asked = "yes" if _is_asked(endpoint, reference) else "no"
    role = "registry" if endpoint.is_upstream else "mirror"
    return (str(position), endpoint.base, role, asked, ",".join(sorted(endpoint.capabilities)), endpoint.source)


def _is_asked(endpoint: Endpoint, reference: Reference) -> bool:
    from imagestore.registry.endpoints import PULL, RESOLVE

    needed = {PULL} if reference.digest is not None else {PULL, RESOLVE}
    return needed <= endpoint.capabilities


def _notes(endpoint: Endpoint, proxies: ProxyRules, mirror_credentials: Mapping[str, str]) -> list[str]:
    """What is unusual about the way to an endpoint; header values stay out, they may be secrets."""
    from imagestore.registry.transport import urls

    shown_to = {} if endpoint.is_upstream else mirror_credentials
    settings, proxy = endpoint.connection, proxies.proxy_for(endpoint.origin)
    told = {
        "not encrypted: plain http": endpoint.origin.scheme == "http",
        "certificates are not checked: skip_verify": settings.skip_verify,
        f"trusts authorities in {', '.join(settings.ca_files)}": bool(settings.ca_files),
        f"shows client certificate {', '.join(pair[0] for pair in settings.client_pairs)}": bool(settings.client_pairs),
        f"sends header fields {', '.join(dict.fromkeys(name for name, _ in endpoint.headers))}": bool(endpoint.headers),
        f"through proxy {urls.shown(proxy)}": bool(proxy),
        f"is shown the credentials of {shown_to.get(endpoint.host, '')}": endpoint.host in shown_to,
    }
    return [note for note, applies in told.items() if applies]


def _as_json(
    reference: Reference,
    configured: RegistryHosts,
    endpoints: Sequence[Endpoint],
    proxies: ProxyRules,
    mirror_credentials: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "reference": str(reference),
        "folder": configured.folder,
        "endpoints": [
            {
                "url": endpoint.base,
                "isUpstream": endpoint.is_upstream,
                "isAsked": _is_asked(endpoint, reference),
                "capabilities": sorted(endpoint.capabilities),
                "source": endpoint.source,
                "notes": _notes(endpoint, proxies, mirror_credentials),
            }
            for endpoint in endpoints
        ],
        "remarks": list(configured.remarks),
    }
