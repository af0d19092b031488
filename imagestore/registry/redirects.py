"""Where a redirect leads, and what goes along.

Blobs are usually served by a storage host under a signed URL. Everything that was made for the registry stays with the
registry: ``Authorization`` and every configured header are dropped as soon as scheme, host or port differ, and are not
put back when a later hop returns (CVE-2026-50151, GHSA-vh4v-2xq2-g5cg; storage services also refuse a signed request
that carries a second authorization).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import ProtocolError
from imagestore.registry.transport import urls
from imagestore.registry.transport.messages import moved

if TYPE_CHECKING:
    import httpx

    from imagestore.registry.transport.addresses import Origin
    from imagestore.registry.transport.messages import Response

STATUSES: Final = frozenset({301, 302, 303, 307, 308})
# What a stranger may see of a request: which form and which bytes are wanted.
_TRAVELLING: Final = frozenset({"accept", "range"})


def next_request(request: httpx.Request, response: Response, *, home: Origin) -> httpx.Request:
    """The request that follows a redirect.

    Args:
        request: what was sent last; it must be a GET or HEAD.
        response: the redirecting answer.
        home: the origin whose secrets the request may carry.

    Raises:
        ProtocolError: the target is missing, unreadable, not http(s), or leads from https to http.
    """
    here = urls.origin_of(str(request.url))
    host = urls.host_port(here)
    location = response.headers.get("Location", "").strip()
    if request.method not in {"GET", "HEAD"}:
        raise ProtocolError(f"{host}: a {request.method} is not redirected", host=host, status=response.status)
    if not location:
        raise ProtocolError(
            f"{host}: answered {response.status} without saying where to go", host=host, status=response.status
        )
    try:
        target = urls.join(str(request.url), location)
        there = urls.origin_of(target)
    except ProtocolError as error:
        raise ProtocolError(
            f"{host}: redirects where nobody can go: {error}", host=host, status=response.status
        ) from error
    if here.scheme == "https" and there.scheme != "https":
        raise ProtocolError(
            f"{host}: redirects from https to {urls.shown(target)}, which is not encrypted",
            host=host,
            status=response.status,
        )
    if there == home == here:
        return moved(request, target)
    return moved(request, target, only=_TRAVELLING)
