"""Layers that a registry doesn't have, fetched from the addresses in their descriptor.

Old Windows base layers are such. The addresses are a stranger's words (CVE-2020-15157), so they are followed only to
hosts the operator allowed, over https, to public addresses, without credentials, configured headers or client
certificates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import ProtocolError
from imagestore.oci.media_types import Kind
from imagestore.registry.endpoints import Endpoint
from imagestore.registry.session import Line
from imagestore.registry.transport import urls

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    import httpx

    from imagestore.oci.descriptor import Descriptor
    from imagestore.registry.operation import Sender
    from imagestore.registry.transport.addresses import Origin
    from imagestore.util.cancel import CancelToken


def allowed_sources(descriptor: Descriptor, allowed_hosts: AbstractSet[str]) -> tuple[Endpoint, ...]:
    """The addresses of a foreign layer that may be asked, in the descriptor's order; each is its endpoint's ``base``.

    Args:
        descriptor: of the layer; other content has none.
        allowed_hosts: host names, with the port when it isn't 443.
    """
    if descriptor.kind is not Kind.FOREIGN_LAYER:
        return ()
    found: dict[Endpoint, None] = {}
    for url in descriptor.urls:
        try:
            origin = urls.origin_of(url)
        except ProtocolError:
            continue
        if origin.scheme == "https" and urls.host_port(origin) in allowed_hosts:
            found[Endpoint(url, origin, urls.host_port(origin), is_upstream=True, source="layer address")] = None
    return tuple(found)


class _Nobody:
    """An Authenticator that never has an answer."""

    def authorization(self, origin: Origin, repository: str) -> str:
        """Nothing."""
        return ""

    def provenance(self, origin: Origin, repository: str) -> str:
        """Nowhere."""
        return ""

    def forget(self, origin: Origin, repository: str, refused: str) -> None:
        """Nothing is remembered."""

    def stored_login(self, origin: Origin, repository: str, *, cancel: CancelToken) -> str:
        """Nowhere."""
        return ""

    def respond(self, origin: Origin, repository: str, headers: httpx.Headers, *, cancel: CancelToken) -> str:
        """Refuse: no credentials go to an address that an image named."""
        raise ProtocolError(
            f"{urls.host_port(origin)}: wants a login for a foreign layer, which is never given",
            host=urls.host_port(origin),
            status=401,
        )


def foreign_line(sender: Sender) -> Line:
    """A line without credentials.

    Args:
        sender: connects to public addresses only.
    """
    return Line(sender, _Nobody())
